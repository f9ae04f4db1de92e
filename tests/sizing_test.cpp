// How large a pool is where nobody says it, and what is refused. Chapter: step3_paged/README.md.
#include "step3_paged/sizing.h"

#include <gtest/gtest.h>

#include "common/cli/machine.h"
#include "common/error.h"
#include "tests/reference_model.h"
