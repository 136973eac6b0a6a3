// The program `flatout`.
#include <string>
#include <vector>

#include "cli/commands.h"

int main(int argc, char** argv) {
  return flatout::cli::main_program(std::vector<std::string>(argv + (argc > 0), argv + argc));
}
