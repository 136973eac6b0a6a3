// Words that the table on the screen and the page share. Not escaped for either.
#pragma once

#include <string>
#include <vector>

#include "remedy/search.h"

namespace flatout::remedy {

/// With blanks between them.
std::string joined(const std::vector<std::string>& words);

/// In single quotes, for a shell.
std::string quoted(const std::string& value);
/// As it is where a shell takes it so, else quoted.
std::string shell_word(const std::string& word);
/// A command as one types it.
std::string shell_command(const std::vector<std::string>& words);

/// "1.32x (1.28 to 1.36)": the gain and its 95 % bounds; "-" where nothing was measured.
std::string measured(const Decision& decision);

/// That nothing was tried, for want of time, and how much of it is lacking; "" where it is not so.
std::string nothing_tried(const Outcome& outcome);

/// What is still found with all that is kept, is worth 5 % or more, and nothing was tried for.
std::vector<const model::Finding*> unanswered(const Outcome& outcome);
/// What is said of such a one: what it is worth, where it is, and what to do by hand.
std::string unanswered_words(const model::Finding& finding);

/// What the search ends with where nothing is kept.
std::string nothing_kept(const Outcome& outcome);

/// The remedy, kept later, that sets all that this one sets anew; nullptr: it counts.
const Attempt* superseded_by(const Outcome& outcome, const Attempt& attempt);

/// "better, kept", "no difference", "not judged".
std::string verdict_words(const Attempt& attempt);

}  // namespace flatout::remedy
