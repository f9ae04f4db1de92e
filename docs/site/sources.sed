# What Doxygen reads of a source file. The pages that show sources show them whole.

# The system's headers would fill the include graphs.
s/^#include <.*//
# What a file keeps to itself is no part of the reference.
s/^namespace {$/\/** @cond *\/ &/
s/^}  \/\/ namespace$/} \/** @endcond *\//
