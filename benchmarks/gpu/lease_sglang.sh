#!/usr/bin/env bash
# SGLang's figures on one GPU, within one command.
#
#   OUT=FOLDER bash benchmarks/gpu/lease_sglang.sh [steps] [verify] [main] [fa3] [peagle] [profile] [sampled] [tree]
#
# Without a name: verify and main. From the root of the tree; SITE holds the unpacked engine, TARGET, EAGLE3 and
# PEAGLE the reference models, PROMPTS and CHAT lists of token ids (benchmarks.gpu.prompts). Wide models are made
# once. ARMS: other servers than the default ones of main, by name. QUICK=1 tries verify and main on a CPU, in the
# environment of PYTHON.
#
# Where decode graphs are captured, SGLang's EAGLE imports the attention of DeepSeek's models to tell whether it is
# in use, and that module imports deep_gemm, whatever the settings say (0.5.21: speculative/eagle_worker_v2.py 545,
# layers/attention/dsa_backend.py 100; SGLANG_ENABLE_JIT_DEEPGEMM is read elsewhere). A Llama in bf16 calls nothing
# of it. Where SITE does not hold the package, an empty module of its name is put beside the entry points and
# SGLANG_ENABLE_JIT_DEEPGEMM=0 keeps SGLang from using it. To bring the package along: sgl-deep-gemm==0.2.0, which
# SGLang pins (5 MB; of its needs the bundle has apache-tvm-ffi), in "no_deps" of "sglang" in a copy of engines.json.
set -u

PYTHON=${PYTHON:-python3}
SITE=${SITE:-/tmp/site}
TARGET=${TARGET:-/tmp/target}
EAGLE3=${EAGLE3:-/tmp/eagle3}
PEAGLE=${PEAGLE:-/tmp/peagle}
WIDE=${WIDE:-/tmp/wide}
PROMPTS=${PROMPTS:-.gpu/run/copying2048.json}
CHAT=${CHAT:-.gpu/run/chat.json}
RESULTS=${RESULTS:-/tmp/sglang-results}
OUT=${OUT:?a folder for what comes back}
TOTAL_S=${TOTAL_S:-545}
# Compiling takes some 90 of them.
VERIFY_S=${VERIFY_S:-200}
ATTENTION=${ATTENTION:-triton}
ARMS=${ARMS:-}
ARMS_FILE=${ARMS_FILE:-}
REPEATS=${REPEATS:-}
# Tokens of the graphs that prompts run in, as they do by default in SGLang: a server takes 40 s more to stand.
PREFILL_GRAPHS=${PREFILL_GRAPHS:-}
# What specctl_peagle-8-map may draft, as benchmarks.gpu.token_map takes it.
TOKEN_MAP=${TOKEN_MAP:---first 32000}
# Requests at the same time, in the order in which they are measured; without it those of each part.
BATCHES=${BATCHES:-}
QUICK=${QUICK:-}
STAGES=${*:-verify main}
# What stopping the servers and packing may take.
SPARE_S=30
LOG_BYTES=400000
OUT_BYTES_MAX=16000000

left() { echo $((TOTAL_S - SECONDS)); }

# Runs a stage of at most so many seconds; a failure is told and the next stage runs.
stage() {
  local name=$1 seconds=$2
  shift 2
  if [ "$seconds" -lt 10 ]; then echo "$name: no time is left"; return; fi
  local began=$SECONDS
  timeout --kill-after=20 "$seconds" "$@" 2>&1 | tee "$RESULTS/$name.txt"
  echo "$name: ended with ${PIPESTATUS[0]} after $((SECONDS - began)) s, $(left) s are left"
}

# config.json is written last.
widened() {
  local source=$1 name=$2
  [ -n "$QUICK" ] || [ -f "$WIDE/$name/config.json" ] ||
    stage "widen-$name" "$(left)" "$PYTHON" -m benchmarks.gpu.widen "$source" "$WIDE/$name" --jobs "$(nproc)"
}

compare() {
  local name=$1
  shift
  local seconds=$(($(left) - SPARE_S))
  local more=(--folder "$RESULTS/$name" --attention "$ATTENTION" --seconds "$((seconds - SPARE_S))")
  if [ -n "$PREFILL_GRAPHS" ]; then more+=(--prefill-graphs $PREFILL_GRAPHS); fi
  if [ -n "$BATCHES" ]; then more+=(--batch $BATCHES); fi
  if [ -n "$REPEATS" ]; then more+=(--repeats "$REPEATS"); fi
  if [ -n "$ARMS_FILE" ]; then more+=(--arms-file "$ARMS_FILE"); fi
  if [ -n "$QUICK" ]; then more+=(--quick); fi
  stage "$name" "$seconds" "$PYTHON" -m benchmarks.gpu.sglang_compare "$@" "${more[@]}"
}

mkdir -p "$RESULTS" "$OUT" "$WIDE"
export HF_HUB_OFFLINE=1
export PYTHONPATH="$RESULTS/entry:$PWD:$PWD/kernels:$PWD/plugins/vllm:$PWD/plugins/sglang:$PWD/tests:$SITE"
"$PYTHON" -m benchmarks.gpu.entry_points "$RESULTS/entry" --captures || exit 1
if ! "$PYTHON" -c 'import deep_gemm.utils' 2>/dev/null; then
  echo "deep_gemm: not there, an empty module takes its place"
  : >"$RESULTS/entry/deep_gemm.py"
  export SGLANG_ENABLE_JIT_DEEPGEMM=0
fi

for name in $STAGES; do
  case $name in
    steps)
      # What a step asks of the device and of the host, before any server.
      stage layout 60 "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider tests/sglang_plugin/test_layout.py
      stage steps 150 "$PYTHON" -m benchmarks.sglang_step_host --device cuda --output "$RESULTS/sglang-steps.json"
      ;;
    verify)
      quick=()
      if [ -n "$QUICK" ]; then
        quick=(--quick)
        export TRITON_INTERPRET=1 SGLANG_USE_CPU_ENGINE=1
      fi
      stage verify "$VERIFY_S" "$PYTHON" -m benchmarks.gpu.sglang_verify --output "$RESULTS/sglang-verify.json" "${quick[@]}"
      unset TRITON_INTERPRET
      ;;
    main)
      widened "$TARGET" target
      model=$WIDE/target
      if [ -n "$QUICK" ]; then model=$TARGET; fi
      # ARMS is a list of words.
      compare main copying table off drafts --model "$model" --prompts "$PROMPTS" ${ARMS:+--arms $ARMS}
      ;;
    fa3)
      widened "$TARGET" target
      # stock NGRAM's trees with the attention of ATTENTION, our chains with both, off with fa3.
      compare fa3 copying drafts --model "$WIDE/target" --prompts "$PROMPTS" \
        --arms off-fa3 ngram specctl_suffix specctl_suffix-fa3
      ;;
    peagle | profile)
      widened "$TARGET" target
      widened "$EAGLE3" eagle3
      widened "$PEAGLE" peagle
      "$PYTHON" -m benchmarks.gpu.token_map "$RESULTS/token_map.pt" $TOKEN_MAP
      # Their servers take three minutes to stand: profile comes after peagle on the same ones.
      parts=(peagle)
      if [ "$name" = profile ]; then parts+=(profile); fi
      compare "$name" "${parts[@]}" --model "$WIDE/target" --eagle3 "$WIDE/eagle3" --peagle "$WIDE/peagle" \
        --token-map "$RESULTS/token_map.pt" --prompts "$CHAT"
      ;;
    sampled)
      widened "$TARGET" target
      compare sampled sampled --model "$WIDE/target" --prompts "$PROMPTS"
      ;;
    tree) compare tree tree --model "$TARGET" --eagle3 "$EAGLE3" --prompts "$CHAT" ;;
    *) echo "$name: expected steps, verify, main, fa3, peagle, profile, sampled or tree" ;;
  esac
done

find "$RESULTS" -name '*.json' -not -path '*/entry/*' -exec cp {} "$OUT" \;
find "$RESULTS" -name '*.log' -size +"${LOG_BYTES}c" |
  while read -r log; do tail -c "$LOG_BYTES" "$log" > "$log.end" && mv "$log.end" "$log"; done
tar -C "$RESULTS" -czf "$OUT/sglang-logs.tar.gz" .
if [ "$(stat -c %s "$OUT/sglang-logs.tar.gz")" -gt "$OUT_BYTES_MAX" ]; then
  echo "sglang-logs.tar.gz: over $OUT_BYTES_MAX bytes, left out"
  rm "$OUT/sglang-logs.tar.gz"
fi
ls -l "$OUT"
