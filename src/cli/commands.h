// The commands of the program; each takes the words after its name and returns the exit code.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flatout::cli {

int run(const std::vector<std::string>& arguments);
int attach(const std::vector<std::string>& arguments);
int fix(const std::vector<std::string>& arguments);
int report(const std::vector<std::string>& arguments);
int compare(const std::vector<std::string>& arguments);
int serve(const std::vector<std::string>& arguments);
int merge(const std::vector<std::string>& arguments);
int train(const std::vector<std::string>& arguments);
int heap(const std::vector<std::string>& arguments);
int devmem(const std::vector<std::string>& arguments);
int devmem_limit(const std::vector<std::string>& arguments);
int top(const std::vector<std::string>& arguments);
int trace(const std::vector<std::string>& arguments);
int feed(const std::vector<std::string>& arguments);
int check(const std::vector<std::string>& arguments);
int explain(const std::vector<std::string>& arguments);
int cache(const std::vector<std::string>& arguments);
int completion(const std::vector<std::string>& arguments);
int manual(const std::vector<std::string>& arguments);

/// What `run --live` starts beside the recording; no command of the user's.
inline constexpr std::string_view kLiveView = "live-view";
int live_view(const std::vector<std::string>& arguments);

/// All of it: picks the command, prints help and version.
int main_program(const std::vector<std::string>& arguments);

}  // namespace flatout::cli
