// The catalogue of remedies, as data: what each changes, which findings it answers, where it fits,
// what it may change in the job's results, and how to make it permanent.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/finding.h"

namespace flatout::remedy {

/// What a remedy may change in what the job computes. Checked in the trials, not believed.
enum class Effect {
  kExact,       // equal seeds give equal losses, bit by bit
  kEquivalent,  // other random draws or another order of sums: losses within the usual spread
  kChanging,    // another loss curve: only where the user allows it
};
std::string_view name(Effect effect);

/// How a job is started differently. A later one wins over an earlier one.
struct Setting {
  std::map<std::string, std::string> environment;
  std::map<std::string, std::string> agent;  // FLATOUT_REMEDIES: python/flatout/agent/remedies
  bool allocator = false;                    // libflatout_malloc.so
  std::vector<std::string> prefix;           // words before the command

  bool operator==(const Setting&) const = default;
};
Setting merged(Setting base, const Setting& more);
/// "num_workers=2,gc": the value of FLATOUT_REMEDIES; "" for none.
std::string agent_words(const Setting& setting);

/// What is known of the job and the machine when remedies are chosen.
struct Situation {
  int cores = 1;         // that the job may use: mask and quota
  int online_cores = 1;  // of the machine
  int workers = 0;       // of the loader that feeds the steps
  int feeding = 0;       // cores that flatout.feed takes in the place of that
  bool loader = false;   // there is a DataLoader
  bool torch = false;
  bool gpu = false;
  bool free_threaded = false;       // a Python that needs no lock
  bool may_weigh = false;           // may raise priorities (root)
  bool allocator = false;           // libflatout_malloc.so can be preloaded
  bool arenas = false;              // MALLOC_ARENA_MAX is set
  int convolutions = 0, norms = 0;  // Conv2d and BatchNorm2d that the job made
  double optimizer_share = 0;       // of a step
  double input_share = 0;           // of a step, that waits for its batch
  bool fuses = false;               // libflatout_nn.so is here
  bool devmem = false;              // libflatout_devmem.so is here
  bool pillow = false;              // opens pictures
  bool opencv = false;              // is imported
  bool pictures = false;  // torchvision reads folders of pictures, and libflatout_feed.so is here
};

struct Remedy {
  std::string_view id;
  std::string_view what;  // "2 loader workers": with {cores} and the like filled in
  Effect effect = Effect::kExact;
  std::vector<std::string_view> answers;  // finding ids; empty: tried on any job, last
  bool (*fits)(const Situation&) = nullptr;
  std::vector<std::pair<std::string_view, std::string_view>> environment;
  std::vector<std::pair<std::string_view, std::string_view>> agent;
  bool allocator = false;
  std::vector<std::string_view> prefix;
  std::string_view code;   // the line of the user's own code that does the same; "" for none
  std::string_view shell;  // a command that does the same from outside; "" for none
  std::string_view risk;   // what else it changes; "" for nothing
};

std::span<const Remedy> catalogue();
const Remedy* find_remedy(std::string_view id);

/// {cores}, {online}, {twice}, {spare}, {rest}, {arenas} in a row's text replaced by numbers.
std::string filled(std::string_view text, const Situation& situation);
Setting setting_of(const Remedy& remedy, const Situation& situation);

/// A remedy to try: which finding it answers and what that finding promises.
struct Candidate {
  const Remedy* remedy = nullptr;
  std::string finding;
  std::optional<double> predicted;  // gain
  std::optional<model::Where> where;
};

/// What to try, best prediction first; rows of one finding in the order of the catalogue.
std::vector<Candidate> candidates(const std::vector<model::Finding>& findings,
                                  const Situation& situation, bool allow_changing);

}  // namespace flatout::remedy
