#pragma once

/// The version of safealign, if a file that it saves maps without a copy.
const char* parent_version();
