#!/bin/sh
# Compiles and links with options of Fujitsu's compilers, those that have a meaning here; others are
# named and left out. The compiler is GCC, the host's own or one that was fetched when this file was
# written, or what $@variable@ names. Target: @target@.
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
processor=@processor@
# What is an error of newer compilers only, and was a warning of those that programs were made with.
permit="@permit@"
link="-L$here/lib -Wl,--allow-shlib-undefined -lm -Wl,--as-needed -ltofutop"
# The last one is for programs that include mpi-ext.h.
# Libraries may be named before the objects that need them, as with Fujitsu's linker.
first=-Wl,--no-as-needed
clang=
ignored=
case $compiler in
# Whoever gives options gives all of them.
*[[:space:]]*) ;;
*)
    case @target@${compiler##*/} in
    arm64clang | arm64clang++ | arm64clang-[0-9]* | arm64clang++-[0-9]*)
        clang=y link="$link -fuse-ld=lld"
        ;;
    esac
    ;;
esac

# Alone it asks for the version, which is not linked with anything.
[ "$*" = -v ] && link= first=

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
            unroll) set -- "$@" -funroll-loops ;;
            noSVE | NOSVE) [ -z "$processor" ] || processor=-march=armv8.2-a+nosve ;;
            # What is so without it.
            SVE | ocl | simd | simd=*) ;;
            *) ignored="$ignored -K${words%%,*}" ;;
            esac
            words=${words#*,}
        done
        ;;
    # Which of two compilers, which libraries of theirs, listings, profiles, and optimisations that
    # only they have.
    -Nclang | -Nnoclang | -Nlibomp | -Nfjomplib) ;;
    -N?* | -X? | -ffj-* | -Rpass* | --linkfortran | --linkcoarray)
        ignored="$ignored $word"
        ;;
    -SSL2* | -SCALAPACK)
        echo "@name@: $word: Fujitsu's mathematical libraries are not here; leave it out, and" \
            "name others by -l" >&2
        exit 1
        ;;
    -mcpu=a64fx* | -mtune=a64fx | -march=armv8* | -msve-vector-bits=*)
        if [ -z "@processor@" ]; then
            ignored="$ignored $word"
            continue
        fi
        case $word in -mtune=* | -msve*) ;; *) processor= ;; esac
        # As Clang calls it.
        [ "$word" = -mcpu=a64fx+sve ] && word=-mcpu=a64fx
        set -- "$@" "$word"
        ;;
    -c | -E | -S | -M | -MM | -fsyntax-only)
        link= first=
        set -- "$@" "$word"
        ;;
    -mcpu=* | -march=*)
        processor=
        set -- "$@" "$word"
        ;;
    -V) set -- "$@" --version ;;
    *) set -- "$@" "$word" ;;
    esac
done

[ -z "$ignored" ] || echo "@name@: ignored:$ignored" >&2
# Clang compiles for all processors, and is told for which, and where the C library is.
[ -z "$clang" ] || set -- --target=aarch64-linux-gnu --sysroot='@sysroot@' "$@"
if [ -z "$compiler" ]; then
    # shellcheck disable=SC2086
    exec '@fetched@/@compiler@' $processor $permit -I"$here/include" $first "$@" $link
fi
# The compiler may have options in it.
# shellcheck disable=SC2086
exec $compiler $processor $permit -I"$here/include" $first "$@" $link
