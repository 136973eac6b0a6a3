// The program `flatout`.
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/outputs.h"

int main(int argc, char** argv) {
  using namespace flatout::cli;
  const int code = main_program(std::vector<std::string>(argv + (argc > 0), argv + argc));
  return end_as_job(end_output(code));
}
