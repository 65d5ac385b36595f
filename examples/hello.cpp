// The smallest host: load a model, admit one lane, tick until it finishes, print the text.
//
// hello.rs and hello.c are the same program with the same steps.
#include <ictus.hpp>

#include <iostream>

int main(int argc, char **argv) try {
    // Load: the model file is mapped, the page pool is planned, nothing runs yet.
    std::string path = "models/ictus-tiny.gguf";
    ictus::Options options;
    for (int i = 1; i < argc; i++) {
        // --worker: the engine in a process of its own; everything below stays as it is.
        if (std::string(argv[i]) == "--worker")
            options.worker = "";
        else
            path = argv[i];
    }
    ictus::Model model = ictus::Model::open(path, options);
    model.create_rings();

    // Stage: the prompt goes into the token-in ring.
    const std::string prompt = "Once upon a time";
    const auto tokens = model.tokenize(prompt, ICTUS_TEXT_ADD_SPECIAL | ICTUS_TEXT_PARSE_SPECIAL);
    const ictus_token_ref_t staged = model.stage_prompt(tokens);

    // First tick: admit lane 1, run its prompt, grant one token. Later ticks: one token each.
    ictus::Text text = model.begin_text();
    std::cout << prompt;
    for (std::uint64_t seq = 1; seq <= 200; seq++) {
        ictus::Plan plan(seq);
        plan.decode(1, 1);
        if (seq == 1) plan.admit(1, staged).prefill(1, 0, static_cast<std::uint32_t>(tokens.size()));
        const ictus::Events events = model.tick(plan);

        // Read: the emitted tokens are in the token-out ring.
        const ictus_lane_emit_t &emit = events.emits().at(0);
        for (const std::uint32_t token : model.read_tokens(emit.token_ref)) std::cout << text.push(token);
        if (emit.finish != ICTUS_FINISH_NONE) break;
    }
    std::cout << text.end() << '\n';
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
