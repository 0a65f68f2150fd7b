#!/usr/bin/env bash
# Builds fusor if necessary, creates a small data set of real JPEG files unless
# one is given, and trains ResNet-50 on it for some steps.
#
#   bash tools/quickstart.sh [--cuda | --no-cuda] [DATA] [OPTION...]
#
# --cuda also builds the CUDA backend, with pip's wheels if there is no CUDA
# toolkit. It is the default if nvidia-smi lists a GPU, which then trains.
# --no-cuda disables it.
# DATA is an image folder: DATA/train/CLASS/*.jpg (and DATA/val/CLASS/*.jpg).
# Options are passed to `rn50` and override the defaults below, for example
#   bash tools/quickstart.sh ~/pictures -b 16 --iterations 200
set -euo pipefail

start=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
gpu=
if nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
  gpu=1
fi
cuda=$gpu
case ${1:-} in
  --cuda)
    cuda=1
    shift
    ;;
  --no-cuda)
    cuda= gpu=
    shift
    ;;
esac
data=
if (($# > 0)) && [[ $1 != -* ]]; then
  data=$1
  shift
fi

bash "$root/tools/setup.sh" ${cuda:+--cuda} programs
if [[ -n $cuda && -z $gpu ]]; then
  echo "cuda       no GPU here: the CPU trains; for one elsewhere:" \
    "fusor compile --target nvidia-h200" >&2
fi

if [[ -z $data ]]; then
  data=$root/build/samples
  if [[ ! -d $data ]]; then
    "$root/build/bin/fusor" data make-samples --out "$data"
  fi
fi

# Appends a default unless the option is given.
options=("$@")
default_option() {
  local given
  for given in "${options[@]}"; do
    [[ $given == "$1" || $given == "$1="* ]] && return
  done
  options+=("$1" "$2")
}
default_option -b 8
default_option --iterations 60
default_option --image-size 128
[[ -z $gpu ]] || default_option --backend cuda
# A small batch needs a small learning rate, and momentum needs a warm-up.
default_option --lr 0.005
default_option --warmup-steps 5
options+=(--zero-gamma)

cd "$start"
exec "$root/build/bin/rn50" "$data" "${options[@]}"
