// Launches of kernels with all that they read, written down so that tests/cuda/replay.cpp can run them again in a build with a sanitizer.
//
// The environment names the file (ICTUS_SIM_RECORD); without it nothing is recorded. Of each kernel of the engine the first few launches are kept that went right and
// whose memory and threads are no more than a slow build can take.
//
// # Format
// Words of 8 bytes in the machine's order. A launch: length of the name, the name; three sizes of the grid; number of arguments; of each its value, then 0, or of a pointer
// the bytes of the allocation and its beginning, and behind the first argument of a launch that points there how many bytes follow, and those: the rest is 0xff, as fresh memory is.
#include "simulator.h"
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

namespace sim {

namespace {

constexpr u64 MOST_LAUNCHES = 3, MOST_BYTES = 8 << 20, MOST_THREADS = 1 << 15;

const char* path() {
    static const char* path = std::getenv("ICTUS_SIM_RECORD");
    return path;
}
void put(std::string& to, u64 word) { to.append((const char*)&word, sizeof word); }

} // namespace

std::string record(const Entry& entry, Dim3 grid, void** arguments) {
    static std::map<std::string, u64> launches;
    std::string out;
    std::string name = entry.name;
    u64 threads = (u64)grid.x * grid.y * grid.z * entry.threads;
    if (!path() || name.rfind("ictus_", 0) != 0 || threads > MOST_THREADS || launches[name] == MOST_LAUNCHES) return out;
    put(out, name.size());
    out += name;
    for (u64 size : {grid.x, grid.y, grid.z}) put(out, size);
    put(out, entry.arguments);
    std::set<const u8*> written;
    for (u32 i = 0; i < entry.arguments; i++) {
        u64 value = 0;
        std::memcpy(&value, arguments[i], entry.sizes[i]);
        const Home* home = entry.sizes[i] == sizeof value ? find(value) : nullptr;
        put(out, value);
        put(out, home ? home->bytes : 0);
        if (!home) continue;
        put(out, (u64)(std::uintptr_t)home->base);
        if (!written.insert(home->base).second) continue;
        u64 bytes = home->bytes;
        while (bytes > 0 && home->base[bytes - 1] == 0xff) bytes--;
        if (out.size() + bytes > MOST_BYTES) return "";
        put(out, bytes);
        out.append((const char*)home->base, bytes);
    }
    launches[name]++;
    return out;
}

void keep(const std::string& recording) {
    if (recording.empty()) return;
    std::FILE* file = std::fopen(path(), "ab");
    if (!file || std::fwrite(recording.data(), 1, recording.size(), file) != recording.size() || std::fclose(file) != 0) {
        std::perror(path());
        std::abort();
    }
}

} // namespace sim
