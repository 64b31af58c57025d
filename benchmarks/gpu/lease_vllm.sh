#!/usr/bin/env bash
# vLLM's figures on a GPU machine, one stage after another; those of different GPUs may run at the same time.
#
#   RESULTS=FOLDER bash benchmarks/gpu/lease_vllm.sh widen
#   RESULTS=FOLDER GPU=0 bash benchmarks/gpu/lease_vllm.sh ties never_worse phases
#   RESULTS=FOLDER GPU=0 OFF_GPU=1 bash benchmarks/gpu/lease_vllm.sh phases
#   RESULTS=FOLDER GPU=2 bash benchmarks/gpu/lease_vllm.sh kernels greedy sampled tests
#
# From the root of the tree. SITE holds the unpacked engine (ruamel.yaml, which specctl reads policies with, has to be
# there or in the root if the host has none), TARGET and HEADS the reference models, PROMPTS and CHAT
# lists of token ids (copying prompts of benchmarks.gpu.prompts, texts), ROW what benchmarks.gpu.quiet_tail fitted.
set -u

PYTHON=${PYTHON:-python3}
SITE=${SITE:-/tmp/site}
TARGET=${TARGET:-/tmp/target}
MODELS=${MODELS:-/tmp/models}
WIDE=${WIDE:-/tmp/wide}
PROMPTS=${PROMPTS:-.gpu/run/copying2048.json}
CHAT=${CHAT:-.gpu/run/chat_texts.json}
ROW=${ROW:-.gpu/run/tail.json}
RESULTS=${RESULTS:?a folder for what comes back}
GPU=${GPU:-0}
OFF_GPU=${OFF_GPU:-$GPU}
PHASES_S=${PHASES_S:-600}
PHASES=${PHASES:-}
TIES_S=${TIES_S:-90}
KERNELS_S=${KERNELS_S:-150}
KERNELS=${KERNELS:-}
SAMPLED_S=${SAMPLED_S:-300}
WORSE_S=${WORSE_S:-400}
WORSE=${WORSE:-}
SIMULATION_S=${SIMULATION_S:-330}
AFTER=${AFTER:-}
TESTS_S=${TESTS_S:-420}
TWIN_PARTS=${TWIN_PARTS:-5}

mkdir -p "$RESULTS" "$WIDE"
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONUNBUFFERED=1
export PYTHONPATH="$RESULTS/entry:$PWD:$PWD/kernels:$PWD/plugins/vllm:$PWD/plugins/sglang:$PWD/tests:$SITE"
"$PYTHON" -m benchmarks.gpu.entry_points "$RESULTS/entry" > /dev/null || exit 1

stage() {
  local name=$1 seconds=$2 began=$SECONDS
  shift 2
  timeout --kill-after=20 "$seconds" "$@" > "$RESULTS/$name.txt" 2>&1
  echo "$name: ended with $? after $((SECONDS - began)) s" | tee -a "$RESULTS/$name.txt"
}

serve() {
  local gpu=$1 port=$2 name=$3
  shift 3
  CUDA_VISIBLE_DEVICES=$gpu setsid nohup "$PYTHON" -m vllm.entrypoints.cli.main serve "$WIDE/target" \
    --host 127.0.0.1 --port "$port" --served-model-name model --dtype bfloat16 --max-num-seqs 256 \
    --max-num-batched-tokens 8192 --max-model-len 2048 --no-enable-prefix-caching \
    --kv-cache-memory-bytes 28000000000 --gpu-memory-utilization 0.35 "$@" > "$RESULTS/$name.log" 2>&1 < /dev/null &
  echo $! >> "$RESULTS/servers"
}

# The server that ties, never_worse, phases, simulation and profile share, and the one that never speculates.
own_server() {
  healthy 8111 own 1 > /dev/null 2>&1 ||
    serve "$GPU" 8111 own --speculative-config '{"method":"specctl_suffix","num_speculative_tokens":8}'
}

both_servers() {
  own_server
  healthy 8112 other 1 > /dev/null 2>&1 || serve "$OFF_GPU" 8112 other --max-logprobs 512
  healthy 8111 own && healthy 8112 other
}

# Another job, by its process.
await_other() {
  while [ -n "$AFTER" ] && kill -0 "$AFTER" 2> /dev/null; do sleep 1; done
}

healthy() {
  for _ in $(seq "${3:-240}"); do
    "$PYTHON" -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$1/health')" 2> /dev/null && return 0
    sleep 1
  done
  tail -n 30 "$RESULTS/$2.log"
  return 1
}

# Where an installation would have put the command.
command=$("$PYTHON" -c 'import pathlib, sys; print(pathlib.Path(sys.executable).parent / "specctl")')
if [ ! -e "$command" ]; then
  printf '#!/bin/sh\nexec "%s" -m specctl.cli.main "$@"\n' "$PYTHON" > "$command"
  chmod +x "$command"
fi
BOTH="--urls http://127.0.0.1:8111 http://127.0.0.1:8112 --copying $PROMPTS --chat $CHAT"

for name in "$@"; do
  case $name in
    widen)
      stage widen 120 "$PYTHON" -m benchmarks.gpu.widen "$TARGET" "$WIDE/target" --jobs "$(nproc)"
      stage quiet 60 "$PYTHON" -m benchmarks.gpu.quiet_tail apply "$WIDE/target" --row "$ROW"
      ;;
    ties)
      both_servers && stage ties "$TIES_S" "$PYTHON" -m benchmarks.gpu.served_ties $BOTH \
        --folder "$RESULTS/ties" --output "$RESULTS/ties.json"
      ;;
    phases)
      apart=
      [ "$GPU" != "$OFF_GPU" ] && apart=--apart
      both_servers && stage phases "$PHASES_S" "$PYTHON" -m benchmarks.gpu.phases $BOTH $apart \
        --model "$WIDE/target" --settings 0 1 3 5 8 --static-s 2.5 $PHASES \
        --folder "$RESULTS/phases" --output "$RESULTS/phases.json"
      ;;
    never_worse)
      both_servers && await_other && stage never_worse "$WORSE_S" "$PYTHON" -m benchmarks.gpu.never_worse $BOTH \
        $WORSE --folder "$RESULTS/never_worse" --output "$RESULTS/never-worse.json"
      ;;
    simulation)
      # Nothing else may use the host's cores meanwhile: beside tests that compiled, the same load gave half of the
      # tokens/s.
      own_server
      healthy 8111 own && await_other && stage simulation "$SIMULATION_S" "$PYTHON" -m benchmarks.simulation_check \
        --model "$WIDE/target" --copying "$PROMPTS" --chat "$CHAT" --url http://127.0.0.1:8111 --whole --numbers 0 3 --rates 0 \
        --requests 640 --profile-s 30 --rounds 3 --folder "$RESULTS/simulation" --output "$RESULTS/simulation.json"
      ;;
    profile)
      own_server
      healthy 8111 own && stage profile 150 "$PYTHON" -m specctl.cli.main profile http://127.0.0.1:8111 --for 75 \
        --requests 6000 --output "$RESULTS/measured.yaml"
      ;;
    kernels)
      export CUDA_VISIBLE_DEVICES=$GPU
      stage "kernels-$GPU" "$KERNELS_S" "$PYTHON" -m benchmarks.gpu.verify_sampled --max-s "$((KERNELS_S - 30))" \
        $KERNELS --output "$RESULTS/verify-sampled-$GPU.json"
      ;;
    greedy)
      export CUDA_VISIBLE_DEVICES=$GPU
      stage greedy 60 "$PYTHON" -m benchmarks.gpu.verify --output "$RESULTS/verify-greedy.json"
      ;;
    by_kernel)
      export CUDA_VISIBLE_DEVICES=$GPU
      stage by_kernel 150 "$PYTHON" -m benchmarks.gpu.verify_by_kernel --vocabularies 151936 128256
      ;;
    sampled)
      export CUDA_VISIBLE_DEVICES=$GPU
      stage sampled "$SAMPLED_S" "$PYTHON" -m benchmarks.gpu.sampled_end_to_end --model "$WIDE/target" \
        --prompts "$PROMPTS" --max-tokens 384 --cache-bytes 34000000000 --repeats 3 --output "$RESULTS/sampled.json"
      ;;
    tests)
      export CUDA_VISIBLE_DEVICES=$GPU
      SPECCTL_SHARED=$(dirname "$MODELS") stage tests "$TESTS_S" "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider \
        --basetemp "$RESULTS/pytest" ${TESTS:-tests/gpu/test_verification_on_device.py tests/gpu/test_class_limits_on_device.py}
      ;;
    twins)
      # Each in processes of its own, as most of their time goes into compiling.
      export CUDA_VISIBLE_DEVICES=$GPU
      began=$SECONDS running=()
      for twin in tests/kernels/*_twin.py; do
        parts=1
        case $twin in *verify_rejection_twin* | *verify_tree_twin* | *verify_block_twin* | *linked*) parts=$TWIN_PARTS ;; esac
        for ((part = 0; part < parts; part++)); do
          name=$(basename "$twin" .py)-$part
          SPECCTL_TWIN_PART=$part/$parts timeout --kill-after=20 "$TESTS_S" "$PYTHON" -m pytest -q --tb=short \
            -p no:cacheprovider --basetemp "$RESULTS/pytest-$name" "$twin" > "$RESULTS/$name.twin" 2>&1 &
          running+=($!)
        done
      done
      wait "${running[@]}"
      grep -HE '^(FAILED|ERROR)| (passed|failed)' "$RESULTS"/*.twin | tee "$RESULTS/twins.txt"
      echo "twins: ended after $((SECONDS - began)) s" | tee -a "$RESULTS/twins.txt"
      ;;
    *) echo "$name: expected widen, ties, phases, never_worse, simulation, profile, kernels, greedy, by_kernel, sampled, tests or twins" ;;
  esac
done
