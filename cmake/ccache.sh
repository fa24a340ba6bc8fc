#!/bin/sh
# ccache.sh COMPILER ARGUMENT...: compiles through ccache.
set -e

# A precompiled header is only cached with this sloppiness. base_dir lets clones in other folders share what is compiled
# alone; joined sources name their parts by absolute paths, so that only a clone in the same folder finds them.
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime CCACHE_NOHASHDIR=1
# To hash the precompiled header (0.35 GB) for every object took 0.7 s of the 0.75 s of a hit, and of every miss too.
export CCACHE_INODECACHE=1
CCACHE_BASEDIR=$(cd "$(dirname "$0")/.." && pwd)
export CCACHE_BASEDIR

# CMake compiles a precompiled header with an -include of the header itself, for which ccache would take the one that it is
# about to replace: it would look for what was made from that one, whatever the header says now, and hardly ever find it.
for argument; do
  case $argument in *.gch) rm -f "$argument" ;; esac
done
exec ccache "$@"
