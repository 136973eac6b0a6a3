/* Strings by id, without malloc and without locks: a table that only grows. */
#ifndef FLATOUT_AGENT_STRINGS_H_
#define FLATOUT_AGENT_STRINGS_H_

#include <stdint.h>

/* From 1; 0 for an empty string or when the table is full. Longer ones are cut. */
uint32_t strings_intern(const char* text);
/* NULL for an id that is not in the table. */
const char* strings_text(uint32_t id);
/* True once for each id and generation (of the process: strings are sent anew after a fork). */
int strings_need_sending(uint32_t id, uint32_t generation);
/* It could not be sent after all. */
void strings_not_sent(uint32_t id);

#endif /* FLATOUT_AGENT_STRINGS_H_ */
