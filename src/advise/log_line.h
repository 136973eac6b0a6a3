// What a line of a log is by its form alone, whatever its words mean.
#pragma once

#include <cstddef>
#include <string_view>

namespace flatout::advise {

/// "ValueError: too big", "torch.cuda.OutOfMemoryError: ...", "AssertionError", "queue.Empty".
bool is_exception(std::string_view line);

/// The line without "[rank1]: " and the like before it.
std::string_view without_rank(std::string_view line);

/// A comment, a command that a shell echoes: it reports nothing.
bool is_quoted(std::string_view line);

/// Logged as a warning or less: such a level stands before what begins at `at`. NCCL has no higher
/// level than WARN, so its warnings are errors.
bool is_mere_warning(std::string_view line, size_t at);

/// A program's logger wrote it as an error: what it tells was caught.
bool is_logged_error(std::string_view line);

/// It says itself that the job got over what begins at `at` (retried, skipped, ignored), or that
/// this only might happen.
bool is_got_over(std::string_view line, size_t at);

enum class Progress {
  kNone,
  kBar,  // tqdm's, which prints its bar once more when an exception ends it
  kStep,
  kEnd,  // of a job that did what it was to do
};

/// A line as only a job writes that goes on, or that ended well.
Progress progress_of(std::string_view line);

}  // namespace flatout::advise
