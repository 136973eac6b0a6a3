// Whose a source file is, by where it lies, and what some well-known code is for.
#pragma once

#include <string_view>

namespace flatout::model {

/// Lies in an installation's site-packages or dist-packages.
bool is_installed(std::string_view file);
/// Of the agent that we put into the job: never the user's line, wherever it lies.
bool is_agent(std::string_view file);
/// Part of an installed package with this name: ".../site-packages/tqdm/std.py" of "tqdm".
bool in_package(std::string_view file, std::string_view package);
/// Part of a framework for training, or of a trainer or models on top of one; what makes batches in
/// a package of models is not.
bool in_framework(std::string_view file);
/// Part of a library that prints, logs or reports the progress of training.
bool in_logging_library(std::string_view file);
/// A function of such a library that hands a loop the items of what it was given, as progress bars
/// do: what it calls elsewhere is no logging. `generator`: it is known to be one.
bool hands_out_items(std::string_view function, bool generator);
/// A function of native code that reads numbers or words out of text: C++'s input streams, the C
/// library's conversions, well-known readers of JSON.
bool parses_text(std::string_view function);
/// A function of native code that puts text or bytes into a stream: C++'s output streams, the C
/// library's.
bool writes_stream(std::string_view function);

}  // namespace flatout::model
