#include "parent.h"

#include <safealign.h>

const char* parent_version() { return sa_version() != 0 ? sa_version_string() : ""; }
