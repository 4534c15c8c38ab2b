#!/usr/bin/env bash
# hosts.sh [MBIT [OPTIONS...]]: run `natgrad train OPTIONS` with 2 ranks in two network namespaces of this machine, over Open MPI
# and TCP.  The link carries MBIT Mbit/s in each direction (default 100; tc tbf).  The final table has the bytes sent and the
# share of sending time that overlapped other work.
#
# Needs root, iproute2 and Open MPI.  Exit code 77 (skipped) with the reason if the kernel or a tool lacks support.
# NG_BUILD_DIR: the folder of the program (default build).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
natgrad=${NG_BUILD_DIR:-$root/build}/natgrad
mbit=${1:-100}
[[ $# -eq 0 ]] || shift
a=natgrad-a-$$ b=natgrad-b-$$ link=ng$$
scratch=$(mktemp -d)

skip() { echo "skipped: $1"; exit 77; }
gone() {
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -rf "$scratch"
}
trap gone EXIT

command -v ip >/dev/null && command -v tc >/dev/null || skip "no ip or tc (apt-get install iproute2)"
command -v mpirun >/dev/null || skip "no mpirun (apt-get install openmpi-bin)"
[[ -e $(dirname "$natgrad")/launch_mpi.so ]] || skip "built without MPI"
mpirun --version | grep -q 'Open MPI' || skip "mpirun is not Open MPI's"
ip netns add "$a" 2>"$scratch/why" && ip netns add "$b" 2>"$scratch/why" ||
  skip "no network namespace: $(cat "$scratch/why")"
ip link add "${link}a" netns "$a" type veth peer name "${link}b" netns "$b" 2>"$scratch/why" ||
  skip "no pair of interfaces: $(cat "$scratch/why")"

# host NAMESPACE INTERFACE ADDRESS
host() {
  ip -n "$1" address add "$3/24" dev "$2"
  ip -n "$1" link set lo up
  ip -n "$1" link set "$2" up
  tc -n "$1" qdisc add dev "$2" root tbf rate "${mbit}mbit" burst 64kb latency 400ms 2>"$scratch/why" ||
    skip "no tbf: $(cat "$scratch/why")"
}
host "$a" "${link}a" 10.77.0.1
host "$b" "${link}b" 10.77.0.2

# Open MPI calls this script instead of ssh, with the arguments HOST COMMAND...  The script sets another host name; with equal names
# Open MPI would treat both namespaces as one machine.  Open MPI finds the script in PATH, because it splits the argument at
# spaces, and the scratch folder's name may have some.
agent=natgrad-agent-$$
cat >"$scratch/$agent" <<END
#!/bin/sh
shift
exec ip netns exec $b unshare -u sh -c 'hostname natgrad-b; exec sh -c "\$*"' sh "\$@"
END
chmod +x "$scratch/$agent"
export PATH=$scratch:$PATH

# Each rank starts with a mark.  If mpirun fails before both ranks have started, it runs once more: on a busy machine Open
# MPI's own daemons may not find each other ("NO PATH TO TARGET").
cat >"$scratch/rank" <<END
#!/bin/sh
: >"$scratch/started.\$OMPI_COMM_WORLD_RANK"
exec "$natgrad" train "\$@"
END
chmod +x "$scratch/rank"
run_ranks() {
  ip netns exec "$a" unshare -u sh -c 'hostname natgrad-a; exec "$@"' sh \
    mpirun --mca plm_rsh_agent $agent --mca btl tcp,self --mca pml ob1 \
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
    --mca hwloc_base_binding_policy none -x OPENBLAS_NUM_THREADS=1 -x NG_THREADS=1 \
    -host 10.77.0.1:1,10.77.0.2:1 -np 2 "$scratch/rank" "$@"
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status=0
run_ranks "$@" || status=$?
if [[ $status != 0 && ! (-e $scratch/started.0 && -e $scratch/started.1) ]]; then
  echo "hosts.sh: mpirun failed before both ranks started (exit code $status); it runs once more" >&2
  status=0
  run_ranks "$@" || status=$?
fi
exit "$status"
