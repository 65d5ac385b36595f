// The fake driver: machine code in a fatbin, as far as it can be looked into without running it.
//
// A fatbin is a header (magic, u16 version, u16 bytes of the header, u64 bytes behind it) and entries: u16 kind (1 is PTX, 2 is ELF), u16 version, u32 bytes of
// the entry's header, u64 bytes behind that; at 28 the architecture, at 40 flags. An ELF has a section `.nv.info.NAME` for each kernel: records of u8 format,
// u8 attribute, u16 bytes or value. Offsets and attributes were read off what nvcc 13.5 writes, beside its sources.
//
// As a driver does, this takes the newest code of the device's own generation, and believes the lengths of the headers no further than the one outside. What is
// in the code is not run: the simulator's kernel of the same name is. So only the declarations are compared, as those of PTX text are.
//
// # Limits
// Code alone, not compressed: PTX in a fatbin is not looked at.
#include "driver.h"

namespace fake {

namespace {

constexpr u16 KIND_ELF = 2;
constexpr u64 COMPRESSED = 0x2000 | 0x8000; // by one way or another
constexpr u64 THIS_ONE_ONLY = 0x100000;     // sm_90a: not for a later device of the generation
constexpr u8 LONG_RECORD = 4;
constexpr u8 MAX_THREADS = 0x05, PARAMETER = 0x17;

// Bytes, read only where they are.
struct Bytes {
    const char* start;
    u64 count;

    bool has(u64 at, u64 bytes) const { return at <= count && bytes <= count - at; }
    Bytes part(u64 at, u64 bytes) const { return has(at, bytes) ? Bytes{start + at, bytes} : Bytes{start, 0}; }
    // 0 where there is none.
    template <class T> T read(u64 at) const {
        T value = 0;
        if (has(at, sizeof value)) std::memcpy(&value, start + at, sizeof value);
        return value;
    }
    std::string text(u64 at) const {
        u64 end = at;
        while (end < count && start[end]) end++;
        return at < count ? std::string(start + at, end - at) : std::string();
    }
};

Declared declared_in(Bytes info) {
    std::map<u16, u32> sizes; // by position
    Declared declared;
    for (u64 at = 0; info.has(at, 4);) {
        u8 format = info.read<u8>(at), attribute = info.read<u8>(at + 1);
        u64 bytes = format == LONG_RECORD ? info.read<u16>(at + 2) : 0;
        if (format == LONG_RECORD && attribute == PARAMETER) sizes[info.read<u16>(at + 8)] = info.read<u32>(at + 12) >> 18;
        if (format == LONG_RECORD && attribute == MAX_THREADS) declared.threads = info.read<u32>(at + 4);
        at += 4 + bytes;
    }
    for (auto [position, size] : sizes) declared.sizes.push_back(size);
    return declared;
}

// What the sections of an ELF say of its kernels; false when it is none, or not whole.
bool look_into(Bytes elf, std::map<std::string, Declared>& kernels) {
    if (!elf.has(0, 64) || std::memcmp(elf.start, "\x7f" "ELF\2\1", 6)) return false;
    u64 table = elf.read<u64>(40), bytes = elf.read<u16>(58), count = elf.read<u16>(60), names_at = elf.read<u16>(62);
    if (bytes < 64 || count == 0 || names_at >= count || !elf.has(table, bytes * count)) return false;
    auto section = [&](u64 index) { return elf.part(table + index * bytes, bytes); };
    auto body = [&](Bytes header) { return elf.part(header.read<u64>(24), header.read<u64>(32)); };
    Bytes names = body(section(names_at));
    const std::string HEAD = ".nv.info.";
    for (u64 index = 0; index < count; index++) {
        std::string name = names.text(section(index).read<u32>(0));
        if (name.compare(0, HEAD.size(), HEAD) == 0) kernels[name.substr(HEAD.size())] = declared_in(body(section(index)));
    }
    return !kernels.empty();
}

} // namespace

bool is_fatbin(const char* image) { return !std::memcmp(image, "\x50\xed\x55\xba", 4); }

int open_fatbin(const char* image, u64 device, std::map<std::string, Declared>& kernels) {
    Bytes head{image, 16};
    u64 header = head.read<u16>(6), behind = head.read<u64>(8);
    if (head.read<u16>(4) != 1 || header < 16) return refuse(INVALID_IMAGE, "a fatbin of another version");
    Bytes body{image + header, behind}, best{};
    u64 best_architecture = 0;
    for (u64 at = 0; at < body.count;) {
        Bytes entry = body.part(at, body.read<u32>(at + 4));
        u64 bytes = body.read<u64>(at + 8);
        if (entry.count < 48 || !body.has(at + entry.count, bytes)) return refuse(INVALID_IMAGE, "an entry of a fatbin is cut short");
        u64 architecture = entry.read<u32>(28), flags = entry.read<u64>(40);
        bool is_of_generation = architecture / 10 == device / 10 && architecture <= device;
        bool fits = flags & THIS_ONE_ONLY ? architecture == device : is_of_generation;
        if (entry.read<u16>(0) == KIND_ELF && fits && architecture > best_architecture) {
            if (flags & COMPRESSED) return refuse(NOT_SUPPORTED, "the fake driver does not unpack machine code");
            best = body.part(at + entry.count, bytes);
            best_architecture = architecture;
        }
        at += entry.count + bytes;
    }
    if (!best_architecture) return refuse(NO_BINARY_FOR_GPU, "a fatbin without machine code for sm_%llu", device);
    return look_into(best, kernels) ? SUCCESS : refuse(INVALID_IMAGE, "machine code that is no ELF, or not whole");
}

} // namespace fake
