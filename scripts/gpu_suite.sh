#!/usr/bin/env bash
# Everything that needs a GPU, in under ten minutes: correctness, backends, steps against torchvision's loop, scaling, plots.
#
#   scripts/gpu_suite.sh [FOLDER]          results in FOLDER, by default benchmarks/DEVICE_DATE
#   SMALL=1 scripts/gpu_suite.sh FOLDER    the same commands with small settings, on a CPU too, as a smoke test
#
# Needs torch 2.11 or later and this package importable; Horovod is measured where it is installed. A part that fails is
# reported and counted, and the others still run.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
SMALL=${SMALL:-}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

device=$($PYTHON -c 'import torch; print(torch.cuda.get_device_name(0).replace(" ", "_") if torch.cuda.is_available() else "cpu")') || exit 2
if [[ $device == cpu && -z $SMALL ]]; then
  echo "error: torch finds no GPU; SMALL=1 runs the commands with small settings on a CPU." >&2
  exit 2
fi
count=$($PYTHON -c 'import torch; print(max(1, torch.cuda.device_count()))')
out=${1:-benchmarks/${device}_$(date -u +%Y-%m-%d)}
mkdir -p "$out"
failed=0

part() { # NAME SECONDS COMMAND...: run it within its time, its output also in NAME.log
  local name=$1 seconds=$2 begun=$SECONDS
  shift 2
  echo "== $name: $*"
  if timeout "$seconds" "$@" > >(tee "$out/$name.log") 2>&1; then
    echo "== $name: done in $((SECONDS - begun)) s"
  else
    echo "== $name: FAILED after $((SECONDS - begun)) s"
    failed=$((failed + 1))
  fi
}

{
  echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown), $(date -u +%FT%TZ)"
  $PYTHON -m torch.utils.collect_env 2>/dev/null | grep -E "^(PyTorch version|CUDA used|OS|Python version|GPU|Nvidia driver|cuDNN|\[pip3\] (torch|triton|numpy|nvidia-nccl))" 
  nvidia-smi 2>/dev/null || true
} > "$out/machine.txt"

part correctness 90 $PYTHON -m pytest -q -rs tests/gpu
if [[ -n $SMALL ]]; then
  launchers=[torchrun] steps="steps=1 warmup=1 rounds=1" model="model=retinanet_tiny" canvases="canvases=[[64,64],[64,96]]" shares="shares=[2,1]"
  part parity 300 $PYTHON -m retina_dist.parity processes=[1] launchers=$launchers dtypes=[fp64] steps=1 "output=$out/parity.json"
  part step 300 $PYTHON -m retina_dist.benchmark step $model $canvases $shares batch_sizes=[1,2] $steps count_canvas=null "output=$out/step.json" "plot=$out/step.png"
  part scaling 300 $PYTHON -m retina_dist.benchmark scaling processes=[1] launchers=$launchers $steps data.batch_size=1 "output=$out/scaling.json"
else
  launchers=[torchrun,horovodrun]
  # COCO's train2017 in the six canvases of its sizes at 800 px, and their shares in percent
  canvases="canvases=[[800,1088],[800,1216],[800,1344],[1088,800],[1216,800],[1344,800]]"
  shares="shares=[37.1,32.0,7.3,12.5,9.8,1.3]"
  model="model=retinanet_r50 model.norm=frozen_bn model.trainable_layers=3"
  part parity 80 $PYTHON -m retina_dist.parity strategy.device=cuda "processes=[1]" launchers=$launchers "dtypes=[fp64,fp32]" steps=3 "output=$out/parity.json"
  for batch in 2 8 16 32; do # a call each, so that one that takes too long costs no other's figures
    part step_$batch 55 $PYTHON -m retina_dist.benchmark step $model $canvases $shares "batch_sizes=[$batch]" steps=2 warmup=2 rounds=2 \
      count_canvas=null "paths=[torchvision,torchvision-tf32,torchvision-fp16,bf16,bf16-graph]" "output=$out/step_$batch.json" "plot=$out/step_$batch.png"
  done
  part step_compiled 110 $PYTHON -m retina_dist.benchmark step $model "canvases=[[800,1088]]" "batch_sizes=[16]" steps=5 rounds=3 count_canvas=null \
    "paths=[torchvision-fp16,bf16,bf16-compile,bf16-compile-graph]" "output=$out/step_compiled.json"
  counts=$($PYTHON -c "import sys; n = int(sys.argv[1]); print('[' + ','.join(str(k) for k in (1, 2, 4, 8) if k <= n) + ']')" "$count")
  part scaling 90 $PYTHON -m retina_dist.benchmark scaling model=retinanet_r50 strategy.device=cuda "processes=$counts" launchers=$launchers \
    trainer.precision=bf16 trainer.channels_last=true data.batch_size=8 rounds=2 "output=$out/scaling.json"
fi
echo "$out: $failed part(s) failed"
exit $((failed > 0))
