#!/usr/bin/env bash
# What is owed on a GPU, side by side on four of one lent machine. A command there may take ten minutes, so:
#
#   bash benchmarks/gpu/lease_four.sh start          unpacks, widens the model, starts all stages, returns
#   OUT=FOLDER bash benchmarks/gpu/lease_four.sh wait SECONDS     prints how far they are, packs what there is
#
# GPU 0: the kernels' twins and the laws, their figures, and sampled end to end (STAGES). GPU 1: autotune beside never
# enabled, whose two servers fill it; when all is quiet, lease_vllm.sh's stage simulation may use one of them. GPU 2:
# SGLang's P-EAGLE, steps and trees. GPU 3: SGLang's verification, suffix with fa3, suffix, table, off.
#
# A machine that waits is taken back after 30 s: send the next wait with the start, not after reading what it said.
# Stages need cores too: the simulator's check beside tests that compile measures those.
#
# From the root of the tree. PIECES and PIECES_SGL hold both engines' bundles, META and META_SGL what unpacks them;
# .gpu/run holds what lease_vllm.sh and lease_sglang.sh read: copying2048.json, chat.json and chat_texts.json
# (benchmarks.gpu.prompts, with --chat and --talk) and tail.json (benchmarks.gpu.quiet_tail fit); MODELS the
# reference models. Its stages take 4 to 10 minutes each.
set -u

PIECES=${PIECES:-/tmp/pl}
PIECES_SGL=${PIECES_SGL:-/tmp/pls}
META=${META:-.gpu/meta}
META_SGL=${META_SGL:-.gpu-sgl/meta}
TREE=${TREE:-/tmp/tree}
export MODELS=${MODELS:-/tmp/shared/models} WIDE=${WIDE:-/tmp/wide} RESULTS=${RESULTS:-/tmp/res}
export TARGET=${TARGET:-$MODELS/reference-target} EAGLE3=${EAGLE3:-$MODELS/reference-eagle3}
export PEAGLE=${PEAGLE:-$MODELS/reference-peagle}
SITE_SGL=/tmp/site-sgl
SGLANG_S=${SGLANG_S:-800}

# On a GPU of its own, in the background, beyond this command's end.
beside() {
  local name=$1
  shift
  setsid nohup env "$@" > "$RESULTS/stage-$name.out" 2>&1 < /dev/null &
}

start() {
  # The unpackers' threads would race for these.
  mkdir -p /tmp/site "$SITE_SGL" "$RESULTS" "$RESULTS/sglang-2" "$RESULTS/sglang-3" "$RESULTS/out-2" "$RESULTS/out-3"
  python3 "$META/unpack.py" "$PIECES" /tmp/site &
  python3 "$META_SGL/unpack.py" "$PIECES_SGL" "$SITE_SGL" &
  wait
  # The next command brings the tree anew.
  cp -r . "$TREE"
  cd "$TREE" || exit 1
  bash benchmarks/gpu/lease_vllm.sh widen
  beside gpu0 GPU=0 TESTS_S=400 KERNELS_S=200 SAMPLED_S=300 TESTS="tests/kernels/test_twins.py tests/gpu/test_verification_on_device.py" \
    bash benchmarks/gpu/lease_vllm.sh ${STAGES:-tests kernels sampled}
  beside gpu1 GPU=1 WORSE_S=270 bash benchmarks/gpu/lease_vllm.sh never_worse
  beside gpu2 CUDA_VISIBLE_DEVICES=2 SITE=$SITE_SGL RESULTS="$RESULTS/sglang-2" OUT="$RESULTS/out-2" TOTAL_S="$SGLANG_S" \
    bash benchmarks/gpu/lease_sglang.sh peagle steps tree
  beside gpu3 CUDA_VISIBLE_DEVICES=3 SITE=$SITE_SGL RESULTS="$RESULTS/sglang-3" OUT="$RESULTS/out-3" TOTAL_S="$SGLANG_S" \
    bash benchmarks/gpu/lease_sglang.sh verify fa3 main
}

wait_for() {
  local ends=$((SECONDS + $1))
  while [ $SECONDS -lt $ends ] && pgrep -f 'lease_(vllm|sglang).sh' > /dev/null; do sleep 2; done
  for file in "$RESULTS"/stage-*.out "$RESULTS"/*.txt; do
    echo "== $file"
    tail -n 12 "$file" | cut -c1-200
  done
  rm -rf /tmp/pack
  cp -r "$RESULTS" /tmp/pack
  find /tmp/pack -name '*.log' -size +300k -exec sh -c 'tail -c 250000 "$1" > "$1.end"; rm "$1"' _ {} \;
  find /tmp/pack \( -name entry -o -name '*.tar.gz' \) -prune -exec rm -rf {} +
  tar czf "${OUT:?a folder for what comes back}/all.tar.gz" -C /tmp pack
  ls -l "$OUT"
}

case ${1:-} in
  start) start ;;
  wait) wait_for "${2:?seconds}" ;;
  *) echo "expected start or wait SECONDS"; exit 2 ;;
esac
