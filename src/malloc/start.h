// What happens once, when the library is loaded.
#pragma once

namespace flatout::malloc {

void print_stats();  // to standard error: malloc_stats()

}  // namespace flatout::malloc
