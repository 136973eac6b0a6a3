// LoaderOptions from and to JSON: the form in which they cross the C interface.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "feed/loader.h"

namespace flatout::feed {

/// Errors: kBadInput, naming the option that is unknown or has the wrong type or value.
Result<LoaderOptions> parse_options(std::string_view json);

std::string report_json(const Loader& loader);

}  // namespace flatout::feed
