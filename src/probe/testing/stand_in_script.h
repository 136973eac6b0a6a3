// The script of a stand-in for one of NVIDIA's libraries: lines "KEY VALUE", and "INDEX KEY VALUE"
// for a device, in the file that an environment variable names.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Copies the value of "INDEX KEY" (index < 0: of "KEY") into out; 0 if the script lacks it.
static int script_value(const char* variable, int index, const char* key, char* out, size_t size) {
  const char* path = getenv(variable);
  FILE* file = path == NULL ? NULL : fopen(path, "r");
  if (file == NULL) return 0;
  char want[64], line[256];
  if (index < 0) {
    snprintf(want, sizeof want, "%s ", key);
  } else {
    snprintf(want, sizeof want, "%d %s ", index, key);
  }
  int found = 0;
  while (!found && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, want, strlen(want)) != 0) continue;
    line[strcspn(line, "\n")] = 0;
    snprintf(out, size, "%s", line + strlen(want));
    found = 1;
  }
  fclose(file);
  return found;
}
