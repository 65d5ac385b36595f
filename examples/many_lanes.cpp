// Many requests on one engine, without a scheduler of your own.
//
// serve_many.rs is the same program with the same steps; both print the same answers.
#include <ictus.hpp>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

// What every prompt begins with: a request that starts from its cached state computes only what follows.
const char *const kSystem =
    "This is a book of short stories for small children. Every story is about a friend, a garden, a walk in the wood "
    "or a day at the sea, and every story ends well. The words are simple, and the sentences are short. Here is one of them. ";
const char *const kOpenings[] = {"Once upon a time",   "One day, a little dog", "Tom and Mia",
                                 "The sun was up and", "There was a big tree",  "A cat sat"};
constexpr int kRequests = 12;

struct Answer {
    std::string text;
    ictus_driver_event_t last{};
};

std::string trimmed(const std::string &text) {
    const char *const blank = " \t\r\n";
    const std::size_t first = text.find_first_not_of(blank);
    return first == std::string::npos ? std::string() : text.substr(first, text.find_last_not_of(blank) - first + 1);
}

} // namespace

int main(int argc, char **argv) try {
    std::string path = "models/ictus-tiny.gguf";
    ictus::Options options;
    for (int i = 1; i < argc; i++) {
        // --worker: the engine in a process of its own; everything below stays as it is.
        if (std::string(argv[i]) == "--worker")
            options.worker = "";
        else
            path = argv[i];
    }
    // Load, and give the engine a driver with a thread. It sleeps until something is submitted.
    ictus::Model model = ictus::Model::open(path, options);
    ictus::DriverOptions lanes;
    lanes.record.max_lanes = 4;
    lanes.record.tick_tokens = 128;
    ictus::Driver driver(model, lanes.threaded());

    // Submit everything. Any thread may: here, one for each request reads its stream and tells what it sees.
    const auto started = std::chrono::steady_clock::now();
    const auto ms = [&] {
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
    };
    std::vector<Answer> answers(kRequests);
    std::vector<std::thread> readers;
    for (int number = 1; number <= kRequests; number++) {
        ictus::Request request(std::string(kSystem) + kOpenings[(number - 1) % 6]);
        const int priority = number % 3 == 0 ? 5 : 0;
        request.max_tokens(48).priority(priority);
        ictus::Stream stream = driver.submit(request);
        readers.emplace_back([&, number, priority, stream = std::move(stream)]() mutable {
            Answer &answer = answers[static_cast<std::size_t>(number - 1)];
            for (const ictus::DriverEvent &event : stream) {
                answer.text += event.text;
                if (event.started())
                    std::fprintf(stderr, "%7.1f ms  %3d starts   priority %d, %llu tokens cached\n", ms(), number, priority,
                                 static_cast<unsigned long long>(event.record.cached_tokens));
                if (event.finished()) answer.last = event.record;
            }
            std::fprintf(stderr, "%7.1f ms  %3d finishes after %llu tokens\n", ms(), number,
                         static_cast<unsigned long long>(answer.last.answer_tokens));
        });
    }
    for (std::thread &reader : readers) reader.join();
    const double seconds = ms() / 1e3;

    std::uint64_t said = 0, computed = 0, cached = 0;
    int failed = 0;
    for (int number = 1; number <= kRequests; number++) {
        const Answer &answer = answers[static_cast<std::size_t>(number - 1)];
        std::cout << "\n[" << number << "] " << trimmed(answer.text) << '\n';
        said += answer.last.answer_tokens;
        computed += answer.last.prefill_tokens;
        cached += answer.last.cached_tokens;
        failed += answer.last.finish == ICTUS_DRIVER_FINISH_FAILED || answer.last.finish == ICTUS_DRIVER_FINISH_NONE;
    }
    std::cout << '\n' << kRequests << " requests: " << said << " tokens\n";
    std::fprintf(stderr, "%.2f s, %.0f tok/s; %llu prompt tokens computed, %llu from the cache\n", seconds,
                 static_cast<double>(said) / seconds, static_cast<unsigned long long>(computed),
                 static_cast<unsigned long long>(cached));
    return failed == 0 ? 0 : 1;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
