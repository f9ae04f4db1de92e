# What Doxygen reads of a source file. The pages that show sources show them whole.

# A file that does not begin with @file is documented all the same: the reference links to the definitions in it. The
# first line of a head comment says what the file is.
1{
  /@file/!{
    s/^\/\/ *\(.*\)/\/** \1 @file *\//
    t
    s/^/\/** @file *\/ /
  }
}
# The system's headers would fill the include graphs.
s/^#include <.*//
# Nor does a switch of another library's header belong to the reference.
/^#define KVCACHE_/!s/^#define .*//
# An unnamed namespace is no part of the reference.
s/^namespace {$/\/** @cond *\/ &/
s/^}  \/\/ namespace$/} \/** @endcond *\//
# A record that a comment names is a link to its page.
/\/\/\//s/docs\/results\/\([a-z0-9-]*\)\.md/@ref results-\1 "&"/
# An option in a comment keeps its two hyphens, which Doxygen would print as a dash. In code it does so by itself: in an
# indented line, and between backticks, which a line without an even number of them shares with its neighbour.
/\/\/\//{
  /\/\/\/     /b
  /^[^`]*\(`[^`]*`[^`]*\)*$/!b
  :hyphens
  s/\(\/\/\/\([^`]*`[^`]*`\)*[^`]*[ ("=]\)--\([a-z]\)/\1\\--\3/
  t hyphens
}
