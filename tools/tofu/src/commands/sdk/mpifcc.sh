#!/bin/sh
# Compiles and links MPI programs for `tofu run --local` with the host's MPI and the options of
# Fujitsu's compilers. `tofu sdk --mpi` writes one for nodes instead.
here=$(cd "$(dirname "$0")/.." && pwd) || exit
# The folder of Fortran's modules. For Open MPI's mpifort, -M is the preprocessor's option, with
# which it links nothing.
for word; do
    shift
    [ "@compiler@$word" = frt-M ] && word=-J
    set -- "$@" "$word"
done
for program in @programs@; do
    # The name may be a link to this file.
    if command -v "$program" > /dev/null && ! [ "$(command -v "$program")" -ef "$0" ]; then
        export @variable@="$here/bin/@compiler@" OMPI_@language@="$here/bin/@compiler@"
        # jTofu is for mpi-ext.h.
        exec "$program" "$@"
    fi
done
echo "@name@: there is no MPI to compile with; install the package libmpich-dev, or make the SDK" \
    "with --mpi" >&2
exit 1
