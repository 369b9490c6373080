#pragma once

/// The version of safealign.
const char* parent_version();
