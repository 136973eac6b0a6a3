// The program `flatout`.
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/job.h"

int main(int argc, char** argv) {
  using namespace flatout::cli;
  return end_as_job(main_program(std::vector<std::string>(argv + (argc > 0), argv + argc)));
}
