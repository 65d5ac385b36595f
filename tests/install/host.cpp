// The same host through a C++ compiler, after the installed C++ header has made an error of a status.

#include <ictus.hpp>

#define main host_main
#include "host.c"
#undef main

int main(int argc, char **argv) {
    try {
        ictus::Model::open("no such model");
        return 30;
    } catch (const ictus::Error &error) {
        if (error.status() != ICTUS_ERR_UNKNOWN_HANDLE) return 31;
    }
    return host_main(argc, argv);
}
