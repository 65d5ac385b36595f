// Runs kernels in a build with a sanitizer of the C++ compiler (scripts/sanitize-kernels.sh), which then says what they do wrong and ends the program.
//
//   replay recorded FILE [MOST]   launches as kernels/sim/record.cpp wrote them down, of each kernel at most MOST; fails where a kernel of the engine has none
//   replay planted KERNEL         a kernel of planted.cu, over 64 numbers
//
// Numbers are not compared: tests/cuda.rs does that.
#include "sim/simulator.h"
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

using sim::Home;

namespace {

// Of the recording that is read.
struct Reader {
    std::ifstream file;
    bool is_at_end() { return file.peek() == std::ifstream::traits_type::eof(); }
    void get(void* to, u64 bytes) {
        file.read((char*)to, (std::streamsize)bytes);
        if (!file) {
            std::fprintf(stderr, "the recording ends early\n");
            std::exit(2);
        }
    }
    u64 word() {
        u64 word;
        get(&word, sizeof word);
        return word;
    }
};

struct Launched {
    std::string name;
    sim::Dim3 grid;
    std::vector<u64> values;
    std::map<u64, u64> memory; // here, by where it was
};

u64 upload(const std::vector<u8>& bytes) {
    u64 address = sim::allocate(bytes.size(), 4096); // the shadow, which nobody asks here, has few elements
    sim::store(*sim::find(address), 0, bytes.data(), bytes.size());
    return address;
}

Launched read(Reader& reader) {
    Launched launch;
    launch.name.resize(reader.word());
    reader.get(launch.name.data(), launch.name.size());
    launch.grid.x = (u32)reader.word();
    launch.grid.y = (u32)reader.word();
    launch.grid.z = (u32)reader.word();
    for (u64 count = reader.word(); count > 0; count--) {
        u64 value = reader.word();
        if (u64 bytes = reader.word()) {
            u64 base = reader.word();
            auto [place, is_new] = launch.memory.try_emplace(base);
            if (is_new) {
                u64 written = reader.word();
                std::vector<u8> contents(bytes, 0xff);
                reader.get(contents.data(), written);
                place->second = upload(contents);
            }
            value = value - base + place->second;
        }
        launch.values.push_back(value);
    }
    return launch;
}

bool run(const Launched& launch) {
    const sim::Entry* entry = sim::kernel(launch.name.c_str());
    if (!entry || entry->arguments != launch.values.size()) {
        std::fprintf(stderr, "%s: no such kernel\n", launch.name.c_str());
        return false;
    }
    std::vector<u64> values = launch.values;
    std::vector<void*> arguments;
    for (u64& value : values) arguments.push_back(&value);
    std::string error;
    bool is_right = sim::run(*entry, launch.grid, arguments.data(), 0, ~0ull, error);
    if (!is_right) std::fprintf(stderr, "%s\n", error.c_str());
    return is_right;
}

int recorded(const char* path, u64 most) {
    Reader reader = {std::ifstream(path, std::ios::binary)};
    std::map<std::string, u64> launches;
    u64 count = 0;
    while (!reader.is_at_end()) {
        Launched launch = read(reader);
        if (launches[launch.name]++ < most) {
            // Whoever reads the log of a sanitizer sees which launch it was.
            std::fprintf(stderr, "%s %u %u %u\n", launch.name.c_str(), launch.grid.x, launch.grid.y, launch.grid.z);
            if (!run(launch)) return 1;
            count++;
        }
        for (auto [was, is] : launch.memory) sim::release(is);
    }
    u64 missing = 0;
    for (const sim::Entry* entry = sim::entries; entry; entry = entry->next) {
        if (std::string(entry->name).rfind("ictus_", 0) != 0 || launches.count(entry->name)) continue;
        std::fprintf(stderr, "the recording has no launch of %s\n", entry->name);
        missing++;
    }
    std::fprintf(stderr, "%llu launches of %llu kernels\n", count, (u64)launches.size());
    return missing > 0;
}

int planted(const char* name) {
    std::vector<u8> numbers(64 * sizeof(f32));
    for (u32 i = 0; i < 64; i++) {
        f32 number = (f32)i;
        std::memcpy(numbers.data() + i * sizeof number, &number, sizeof number);
    }
    Launched launch = {name, {1, 1, 1}, {upload(numbers), upload(numbers)}, {}};
    return !run(launch);
}

} // namespace

int main(int count, char** words) {
    std::string what = count > 2 ? words[1] : "";
    if (what == "recorded") return recorded(words[2], count > 3 ? std::strtoull(words[3], nullptr, 10) : ~0ull);
    if (what == "planted") return planted(words[2]);
    std::fprintf(stderr, "replay recorded FILE [MOST] | replay planted KERNEL\n");
    return 2;
}
