// The folder in which trials keep what they write. Its owner holds a lock on it, so that what a
// killed flatout left behind can be told from what is in use.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace flatout::remedy {

class Scratch {
 public:
  /// Below /var, which no overlay covers; elsewhere where that cannot be written, and then without
  /// one. Errors: kIo, kDenied where none of `parents` can hold one.
  static Result<std::unique_ptr<Scratch>> make(const std::vector<std::string>& parents = {
                                                   "/var/tmp", "/tmp"});
  /// Removes the folder.
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }

 private:
  Scratch(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_;  // the folder itself, locked; processes of a trial share the lock as long as they live
};

/// Removes this user's scratch folders in `parent` that nobody owns any more; returns how many.
/// Leaves alone what is in use, another user's, or no folder.
int remove_stale_scratch(const std::string& parent);

/// Removes a folder with all that is in it, without following links. An overlay's work folder is
/// left without any rights; that does not hinder it.
void remove_all(const std::string& path);

}  // namespace flatout::remedy
