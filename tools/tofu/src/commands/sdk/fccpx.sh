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
# The last of these is set while a word is the value of an option that is left out.
inputs= version= mathematical= fortran= value=
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
    if [ -n "$value" ]; then
        value=
        ignored="$ignored $word"
        continue
    fi
    # Options of Fortran, some of which have another meaning in C.
    case @language@$word in
    f-Free) word=-ffree-form ;;
    f-Fixed) word=-ffixed-form ;;
    f-Fwide) word=-ffixed-line-length-none ;;
    f-Cpp | f-Ccpp) word=-cpp ;;
    f-CcdRR8 | f-Ad) set -- "$@" -fdefault-real-8 && word=-fdefault-double-8 ;;
    f-CcdII8 | f-CcdLL8) word=-fdefault-integer-8 ;;
    # The folder of modules.
    f-M*) word=-J${word#-M} ;;
    f-H[a-z]*) word=-fcheck=all ;;
    # Which of their messages there are.
    f-f[iws] | f-f[0-9]* | f-fmsg_num=*) continue ;;
    f-A[A-Za-z]* | f-C[cl]* | f-E[a-z]* | f-X[0-9d]*)
        ignored="$ignored $word"
        continue
        ;;
    esac
    case $word in
    # Words of -K are a list.
    -K*)
        words=${word#-K},
        while [ -n "$words" ]; do
            case ${words%%,*} in
            # NaNs and infinities remain, as with theirs.
            fast) set -- "$@" -O3 -ffast-math -fno-finite-math-only ;;
            noeval) set -- "$@" -fno-associative-math ;;
            nofp_relaxed) set -- "$@" -fno-reciprocal-math ;;
            fp_contract) set -- "$@" -ffp-contract=fast ;;
            nofp_contract) set -- "$@" -ffp-contract=off ;;
            fp_precision) set -- "$@" -fno-fast-math -ffp-contract=off ;;
            openmp | OMP) set -- "$@" -fopenmp ;;
            openmp_simd) set -- "$@" -fopenmp-simd ;;
            PIC | pic) set -- "$@" -fPIC ;;
            unroll | unroll=*) set -- "$@" -funroll-loops ;;
            nounroll) set -- "$@" -fno-unroll-loops ;;
            noSVE | NOSVE) [ -z "$processor" ] || processor=-march=armv8.2-a+nosve ;;
            # Programs for arm64 are position-independent, which excludes it there.
            cmodel=large)
                if [ -n "@processor@" ]; then
                    ignored="$ignored -Kcmodel=large"
                else
                    set -- "$@" -mcmodel=large
                fi
                ;;
            # What is so without it.
            SVE | A64FX | ocl | simd | simd=* | cmodel=small) ;;
            *) ignored="$ignored -K${words%%,*}" ;;
            esac
            words=${words#*,}
        done
        ;;
    # Which of two compilers, which libraries of theirs, listings, profiles, inlining by their
    # rules, options for one of their passes, and optimisations that only they have.
    -Nclang | -Nnoclang | -Nlibomp | -Nfjomplib) ;;
    -N?* | -X? | -x- | -x[0-9]* | -Q[adimpstx]* | -W[0-9],* | -ffj-* | -Rpass* | --linkstl* | \
        -ml=* | -mldefault=* | -mlcmain=* | -Bstatic | -Bdynamic | -Wl,-T/opt/FJSV*)
        ignored="$ignored $word"
        ;;
    # Of their front end.
    --alternative_tokens | --no_alternative_tokens | --display_error_number | --using_std | \
        --diag_*=*)
        ignored="$ignored $word"
        ;;
    --diag_*)
        ignored="$ignored $word"
        value=y
        ;;
    --exceptions | --no_exceptions | --rtti | --no_rtti)
        word=${word#--}
        case $word in no_*) set -- "$@" "-fno-${word#no_}" ;; *) set -- "$@" "-f$word" ;; esac
        ;;
    -mt) set -- "$@" -pthread ;;
    --linkfortran) fortran=y ;;
    -SSL2* | -SCALAPACK | -lfjlapack* | -lfjscalapack* | -lssl2mt*)
        mathematical="$mathematical $word"
        ;;
    # The run-time libraries of their compilers, and the one for large pages.
    -lfj* | -lmpg) ignored="$ignored $word" ;;
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
    -mcpu=native | -mtune=native | -march=native)
        # For arm64 it would be this host's.
        if [ -n "@processor@" ]; then
            ignored="$ignored $word"
        else
            set -- "$@" "$word"
        fi
        ;;
    -c | -E | -S | -M | -MM | -fsyntax-only)
        link= first=
        set -- "$@" "$word"
        ;;
    -mcpu=* | -march=*)
        processor=
        set -- "$@" "$word"
        ;;
    -V) version=y ;;
    # Options of Clang, which -Nclang is made of.
    -fvectorize | -fno-vectorize | -fslp-vectorize | -fno-slp-vectorize | -stdlib=* | \
        -fcolor-diagnostics | -fno-color-diagnostics | -Qunused-arguments | -mllvm | -Xclang)
        case ${compiler##*/} in
        clang*) set -- "$@" "$word" ;;
        *)
            ignored="$ignored $word"
            case $word in -mllvm | -Xclang) value=y ;; esac
            ;;
        esac
        ;;
    *)
        case $word in -*) ;; *.*) inputs=y ;; esac
        set -- "$@" "$word"
        ;;
    esac
done

# Theirs says which version it is, and compiles.
if [ -n "$version" ] && [ -z "$inputs" ]; then
    set -- --version
    link= first= mathematical=
elif [ -n "$version" ] && [ -n "$compiler" ]; then
    # shellcheck disable=SC2086
    $compiler --version | head -n 1 >&2
fi
# The run-time library of programs in C or C++ with parts in Fortran.
if [ -n "$fortran" ] && [ -n "$link" ]; then
    fetched='@fetched@/@compiler@'
    # shellcheck disable=SC2086
    case $(${compiler:-"$fetched"} -print-file-name=libgfortran.so 2> /dev/null) in
    */*) link="-lgfortran $link" ;;
    *) echo "@name@: ignored: --linkfortran, as there is no libgfortran.so: see gfortran" >&2 ;;
    esac
fi
# What SSL II is used for most is in libraries that others have, too.
if [ -n "$mathematical" ] && [ -n "$link" ]; then
    found=
    for name in openblas lapack blas; do
        # shellcheck disable=SC2086
        case $(${compiler:-false} -print-file-name=lib$name.so 2> /dev/null) in
        */*) found="$found -l$name" ;;
        esac
        [ "$found" = " -lopenblas" ] && break
    done
    link="$found $link"
    echo "@name@:$mathematical: Fujitsu's mathematical libraries are not here;" \
        "linked instead:${found:- nothing, as there is no libopenblas.so and no liblapack.so}" >&2
fi
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
