#!/bin/sh
# Compiles and links for nodes with Fugaku's processor, with options of Fujitsu's compilers, those
# that have a meaning here. The compiler is GCC, the host's own or one that was fetched when this
# file was written, or what $@variable@ names. Clang compiles for all processors, and is told here
# for which, and where the C library is.
here=$(cd "$(dirname "$0")/.." && pwd) || exit
if [ -n "${@variable@-}" ]; then
    compiler=$@variable@
elif command -v @compiler@ > /dev/null; then
    compiler=@compiler@
elif [ -x '@fetched@/@compiler@' ]; then
    compiler=
else
    echo "@name@: there is no @compiler@; install it, name a compiler by @variable@, or make the" \
        "SDK again without --no-compiler" >&2
    exit 1
fi
processor=-mcpu=a64fx
link="-L$here/lib -Wl,--allow-shlib-undefined"
clang=
case $compiler in
# Whoever gives options gives all of them.
*[[:space:]]*) ;;
*)
    case ${compiler##*/} in
    clang | clang++ | clang-[0-9]* | clang++-[0-9]*) clang=y link="$link -fuse-ld=lld" ;;
    esac
    ;;
esac

# Alone it asks for the version, which is not linked with anything.
[ "$*" = -v ] && link=

for word; do
    shift
    case $word in
    # Words of -K are a list.
    -K*)
        words=${word#-K},
        while [ -n "$words" ]; do
            case ${words%%,*} in
            fast) set -- "$@" -O3 -ffast-math ;;
            openmp | OMP) set -- "$@" -fopenmp ;;
            openmp_simd) set -- "$@" -fopenmp-simd ;;
            PIC | pic) set -- "$@" -fPIC ;;
            noSVE | NOSVE) processor=-march=armv8.2-a+nosve ;;
            esac
            words=${words#*,}
        done
        ;;
    # Which of two compilers, which libraries of theirs, listings, profiles, and optimisations that
    # only they have.
    -N?* | -X? | -ffj-* | -Rpass*) ;;
    -SSL2* | -SCALAPACK)
        echo "@name@: $word: Fujitsu's mathematical libraries are not here; leave it out, and" \
            "name others by -l" >&2
        exit 1
        ;;
    -mcpu=* | -march=*)
        processor=
        # As Clang calls it.
        [ "$word" = -mcpu=a64fx+sve ] && word=-mcpu=a64fx
        set -- "$@" "$word"
        ;;
    -c | -E | -S | -M | -MM | -fsyntax-only)
        link=
        set -- "$@" "$word"
        ;;
    -V) set -- "$@" --version ;;
    *) set -- "$@" "$word" ;;
    esac
done

[ -z "$clang" ] || set -- --target=aarch64-linux-gnu --sysroot='@sysroot@' "$@"
if [ -z "$compiler" ]; then
    # shellcheck disable=SC2086
    exec '@fetched@/@compiler@' $processor -I"$here/include" "$@" $link
fi
# The compiler may have options in it.
# shellcheck disable=SC2086
exec $compiler $processor -I"$here/include" "$@" $link
