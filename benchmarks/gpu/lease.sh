#!/usr/bin/env bash
# What is owed on a GPU, side by side on the GPUs of one machine. A command there may take ten minutes, so:
#
#   bash benchmarks/gpu/lease.sh start JOB...      unpacks, widens the models, starts the jobs, returns
#   OUT=FOLDER bash benchmarks/gpu/lease.sh wait SECONDS     prints how far they are, packs what there is
#   bash benchmarks/gpu/lease.sh stop              ends jobs and servers, so that other jobs can be started
#
# A job is GPU:ENGINE:STAGE[+STAGE...]: stages of lease_vllm.sh or lease_sglang.sh, one after the other; ENGINE run: a
# script of the tree. What each figure needs, where there are two GPUs:
#
#   0:sglang:peagle+verify  1:sglang:sampled  with ATTENTION=fa3 PREFILL_GRAPHS="64 128 192 256"
#   0:sglang:fa3+main+tree+steps  1:vllm:simulation+profile+twins, and
#   0:vllm:sampled+never_worse+by_kernel+kernels+greedy  as other leases
#
# never_worse's two servers fill a GPU, and so do those of peagle. Each GPU has its share of the cores: beside
# tests that compiled on the same cores a load gave half of its tokens/s.
#
# A machine that waits is taken back after 30 s, and another one takes its place without a word: send the calls that
# bring the pieces in groups that follow each other at once, and the next wait with the start. To think, put a wait
# into the same group. What a call brings must stay under 64 MiB, the tree included: a refused one loses the rest.
#
# From the root of the tree. PIECES and PIECES_SGL hold both engines' bundles, META and META_SGL what unpacks them (an
# engine that is not there is left out); .gpu/run holds what lease_vllm.sh and lease_sglang.sh read: copying2048.json,
# chat.json and chat_texts.json (benchmarks.gpu.prompts, with --chat and --talk) and tail.json
# (benchmarks.gpu.quiet_tail fit); MODELS the reference models.
set -u

PIECES=${PIECES:-/tmp/pl}
PIECES_SGL=${PIECES_SGL:-/tmp/pls}
META=${META:-.gpu/meta}
META_SGL=${META_SGL:-.gpu-sgl/meta}
TREE=${TREE:-/tmp/tree}
export MODELS=${MODELS:-/tmp/shared/models} WIDE=${WIDE:-/tmp/wide} RESULTS=${RESULTS:-/tmp/res}
export TARGET=${TARGET:-$MODELS/reference-target} EAGLE3=${EAGLE3:-$MODELS/reference-eagle3}
export PEAGLE=${PEAGLE:-$MODELS/reference-peagle}
GPUS=${GPUS:-$(nvidia-smi -L 2> /dev/null | wc -l)}
SITE_VLLM=/tmp/site
SITE_SGL=/tmp/site-sgl

unpacked() {
  if [ -d "$1" ] && [ -d "$2" ]; then
    mkdir -p "$3"
    python3 "$1/unpack.py" "$2" "$3"
  fi
}

# In the background, beyond this command's end, on the cores of its GPU: what compiles beside a load moves it.
beside() {
  local gpu=$1 name=$2
  shift 2
  local share=$(($(nproc) / GPUS))
  setsid nohup taskset -c "$((gpu * share))-$(((gpu + 1) * share - 1))" env "$@" \
    > "$RESULTS/stage-$name.out" 2>&1 < /dev/null &
  echo $! >> "$RESULTS/jobs"
}

is_any_running() {
  local job
  while read -r job; do kill -0 "$job" 2> /dev/null && return 0; done < "$RESULTS/jobs"
  return 1
}

begin() {
  local gpu engine stages
  IFS=: read -r gpu engine stages <<< "$1"
  local name=$gpu-${stages//[^a-z0-9_]/-}
  case $engine in
    vllm) beside "$gpu" "$name" GPU="$gpu" bash benchmarks/gpu/lease_vllm.sh ${stages//+/ } ;;
    sglang)
      mkdir -p "$RESULTS/$name" "$RESULTS/out-$name"
      beside "$gpu" "$name" CUDA_VISIBLE_DEVICES="$gpu" SITE=$SITE_SGL RESULTS="$RESULTS/$name" OUT="$RESULTS/out-$name" \
        TOTAL_S="${SGLANG_S:-800}" bash benchmarks/gpu/lease_sglang.sh ${stages//+/ }
      ;;
    run) beside "$gpu" "$name" CUDA_VISIBLE_DEVICES="$gpu" SITE=$SITE_VLLM SITE_SGL=$SITE_SGL bash "$stages" ;;
    *) echo "$1: expected GPU:vllm, GPU:sglang or GPU:run and what" ;;
  esac
}

start() {
  [ "$GPUS" -gt 0 ] || { echo "no GPU"; exit 1; }
  mkdir -p "$RESULTS"
  unpacked "$META" "$PIECES" "$SITE_VLLM" &
  unpacked "$META_SGL" "$PIECES_SGL" "$SITE_SGL" &
  wait
  # A machine that was taken back between two calls has lost its pieces: to go on would cost its time for nothing.
  if [ ! -d "$SITE_VLLM" ] && [ ! -d "$SITE_SGL" ]; then
    echo "no engine: neither $PIECES nor $PIECES_SGL holds one; give the machine back"
    exit 1
  fi
  # The next command brings the tree anew.
  rm -rf "$TREE"
  cp -r . "$TREE"
  cd "$TREE" || exit 1
  if [ -d "$SITE_VLLM" ]; then bash benchmarks/gpu/lease_vllm.sh widen; fi
  for job in "$@"; do begin "$job"; done
}

# By their sessions: a pattern would find this very command too.
stop() {
  local leaders signal leader
  leaders=$(cat "$RESULTS"/jobs "$RESULTS"/servers 2> /dev/null)
  for signal in TERM KILL; do
    for leader in $leaders; do kill -s $signal -- "-$leader" 2> /dev/null; done
    sleep 3
  done
  rm -f "$RESULTS"/jobs "$RESULTS"/servers
}

wait_for() {
  [ -e "$RESULTS/jobs" ] || { echo "nothing was started"; exit 1; }
  local ends=$((SECONDS + $1))
  while [ $SECONDS -lt $ends ] && is_any_running; do sleep 2; done
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
  start) shift; start "$@" ;;
  wait) wait_for "${2:?seconds}" ;;
  stop) stop ;;
  *) echo "expected start JOB..., wait SECONDS or stop"; exit 2 ;;
esac
