#!/bin/sh
# Compiles and links MPI programs for the nodes of tofu. It takes the options of mpich's own
# @name@, and those of Open MPI's that show what would be done: CMake and others ask so.
# @variable@ names another compiler than @default@.
here=$(cd "$(dirname "$0")/.." && pwd) || exit
compiler=${@variable@:-@default@}
includes="-I$here/include/mpich -I$here/include"
# The library's own libraries are on the nodes only.
libraries="-L$here/lib -Wl,--allow-shlib-undefined @libraries@"
run=exec
show=all
link=yes

# Alone it asks for the version, which is not linked with anything.
[ "$*" = -v ] && link=no

for word; do
    shift
    case $word in
    -show | -showme) run=echo ;;
    -showme:compile | -compile-info | -compile_info) show=compile ;;
    -showme:link | -link-info | -link_info) show=link ;;
    -showme:command) show=command ;;
    -showme:incdirs) show=incdirs ;;
    -showme:libdirs) show=libdirs ;;
    -showme:libs) show=libs ;;
    -showme:*)
        echo "@name@: $word is not known" >&2
        exit 1
        ;;
    -cc=* | -cxx=*) compiler=${word#*=} ;;
    -c | -E | -S | -M | -MM | -fsyntax-only)
        link=no
        set -- "$@" "$word"
        ;;
    *) set -- "$@" "$word" ;;
    esac
done

case $show in
compile) echo "$includes" ;;
link) echo "$libraries" ;;
command) echo "$compiler" ;;
incdirs) echo "$here/include/mpich $here/include" ;;
libdirs) echo "$here/lib" ;;
libs) echo "@libraries@" | sed 's/-l//g' ;;
all)
    [ $link = no ] && libraries=
    # All three are lists of words: @variable@ may have options in it.
    # shellcheck disable=SC2086
    $run $compiler $includes "$@" $libraries
    ;;
esac
