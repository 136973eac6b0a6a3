# cmake -DINPUT=file -DOUTPUT=file.cpp -DNAME=page_js -P embed.cmake
# Writes INPUT as a byte array with asset_NAME() (assets.h).
file(READ ${INPUT} hex HEX)
file(SHA256 ${INPUT} sha256)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)"
       "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "// Made by embed.cmake from ${NAME}.
#include \"report/assets.h\"
namespace flatout::report {
static const unsigned char kBytes[] = {
${bytes}};
Asset asset_${NAME}() {
  return {{reinterpret_cast<const char*>(kBytes), sizeof kBytes}, \"${sha256}\"};
}
}  // namespace flatout::report
")
