#!/usr/bin/env bash
# mpirun.sh RANKS PROGRAM...: run a program on RANKS ranks of this machine, also with fewer cores.  The variables let
# Open MPI accept root and more ranks than cores; MPICH ignores them.  The launcher belongs to the configured MPI
# (NG_TEST_MPIRUN): the launcher of another MPI would start RANKS programs of one rank.  Exit code 77 (skipped) without
# a launcher.
set -euo pipefail
n=$1
shift
launcher=${NG_TEST_MPIRUN:-$(command -v mpirun || command -v mpiexec || true)}
if [[ -z $launcher ]]; then
  echo "skipped: no mpirun (apt-get install openmpi-bin)"
  exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_hwloc_base_binding_policy=none # ranks would share the first cores
export HWLOC_HIDE_ERRORS=2 # where there is no /sys it says so, once a rank
export OMPI_MCA_btl_vader_single_copy_mechanism=none # containers forbid it
export OPENBLAS_NUM_THREADS=1 NG_THREADS=${NG_THREADS:-1}
exec "$launcher" -np "$n" "$@"
