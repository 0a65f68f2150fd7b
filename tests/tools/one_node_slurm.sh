#!/usr/bin/env bash
# Runs Slurm on this machine for the duration of a command, to test fusor under
# srun. Needs root and Debian's slurm-wlm and munge.
#
#   tests/tools/one_node_slurm.sh COMMAND...
#   tests/tools/one_node_slurm.sh srun -n 4 fusor train ...
#
# Slurm is configured with 16 CPUs, so that there may be more ranks than cores.
# Daemons, their key, state and logs use a folder in /tmp that is removed at the
# end.
set -euo pipefail

if ((EUID != 0)); then
  echo "one_node_slurm.sh: needs root" >&2
  exit 2
fi
for program in munged munge slurmctld slurmd srun; do
  if ! command -v "$program" >/dev/null; then
    echo "one_node_slurm.sh: no $program: install slurm-wlm and munge" >&2
    exit 2
  fi
done

folder=$(mktemp -d)
daemons=()
# Stops daemons in reverse order once no step is left. Each needs those before it.
stop() {
  for ((i = 0; i < 300; ++i)); do
    [[ -n $(squeue --noheader 2>/dev/null) ]] || break
    sleep 0.1
  done
  local i
  for ((i = ${#daemons[@]} - 1; i >= 0; --i)); do
    kill "${daemons[i]}" 2>/dev/null || true
    wait "${daemons[i]}" || true
  done
  rm -rf "$folder"
}
trap stop EXIT

# start NAME COMMAND...: starts a daemon in the background.
start() {
  "${@:2}" >"$folder/$1.log" 2>&1 &
  daemons+=($!)
}

# await COMMAND...: repeats the command until it succeeds, for at most 30 s.
await() {
  for ((i = 0; i < 300; ++i)); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  echo "one_node_slurm.sh: no success within 30 s: $*" >&2
  tail -n 5 "$folder"/*.log >&2
  exit 1
}

dd if=/dev/urandom of="$folder/key" bs=1024 count=1 status=none
chmod 400 "$folder/key"
chmod 755 "$folder"
mkdir "$folder/state" "$folder/spool"
host=$(hostname -s)
cat >"$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES State=UP
CONF
export SLURM_CONF=$folder/slurm.conf

start munged munged --foreground --force --num-threads=2 \
  --key-file="$folder/key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munged.pid" --log-file="$folder/munged.own.log" \
  --seed-file="$folder/munged.seed"
await munge --no-input --socket="$folder/munge.socket"
start slurmctld slurmctld -D -f "$SLURM_CONF"
start slurmd slurmd -D -f "$SLURM_CONF"
await srun --immediate=1 true
"$@"
