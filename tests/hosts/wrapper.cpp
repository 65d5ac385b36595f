// Every part of the C++ wrapper against the C functions below it. argv[1]: a model, argv[2]: one with a chat template or "-".
#include <ictus.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                   \
        }                                                                   \
    } while (0)

template <class Body> static ictus_status thrown(Body body) {
    try {
        body();
    } catch (const ictus::Error &error) {
        CHECK(error.what()[0] != 0);
        return error.status();
    }
    return ICTUS_STATUS_OK;
}

static std::vector<std::uint32_t> greedy(ictus::Model &model, const std::string &prompt, std::uint16_t n) {
    const auto tokens = model.tokenize(prompt);
    ictus_lane_admit_t admit{};
    admit.lane_tag = 3;
    admit.prompt = model.stage_prompt(tokens);
    admit.params.flags = ICTUS_SAMPLING_FLAG_IGNORE_EOS;
    admit.want_logprobs = 3;
    ictus::Plan plan(1);
    plan.admit(admit).prefill(3, 0, static_cast<std::uint32_t>(tokens.size())).decode(3, n);
    const ictus::Events events = model.tick(plan);
    CHECK(events.plan_seq() == 1 && events.admit_results().at(0).status == ICTUS_ADMIT_ADMITTED && events.faults().empty());
    CHECK(events.logprobs().size() == n && events.logprobs()[0].n_top == 2 && events.emit_for(4) == nullptr);
    const auto emitted = model.read_tokens(events.emit_for(3)->token_ref);
    std::size_t index = 0;
    for (const ictus_lane_logprob_t &record : events.logprobs()) CHECK(record.top_ids[0] == emitted[index++]);
    const ictus_lane_cost_t cost = model.lane_cost(3);
    CHECK(cost.prefill_tokens == tokens.size() && cost.answered_steps == n && cost.decoded_tokens == n - 1u && cost.pages > 0);
    CHECK(thrown([&] { model.lane_cost(4); }) == ICTUS_REJECT_UNKNOWN_LANE);
    ictus::Plan retire(2);
    retire.retire(3);
    CHECK(model.tick(retire).record().mem.pool_blocks_used == 0);
    return emitted;
}

/* An executor over the weights of a model: batches, refusals with their evidence, waits, and the tick engine of the same core. */
static void executed(ictus::Model &model) {
    ictus::DeviceAccount account(UINT64_MAX);
    ictus::Executor executor(model, ictus::ExecutorOptions().account(account));
    const ictus_executor_info_t info = executor.info();
    CHECK(info.vocab == model.info().vocab_size && account.claimed() > info.static_bytes && account.usable() == UINT64_MAX);
    executor.prepare();
    const std::vector<std::uint32_t> prompt = model.tokenize("Once upon a time");
    const std::uint64_t n_prompt = prompt.size();
    const ictus_executor_seq_t seq = executor.admit(ictus::Admission(prompt, n_prompt + 16).reuse());
    ictus::Batch batch;
    ictus::Rows rows;
    executor.reserve(batch.prefill(seq, 0, n_prompt, n_prompt));
    executor.run(batch, rows);
    std::vector<std::uint32_t> said = {rows.token(0)};
    while (said.size() < 8) {
        batch.clear();
        executor.run(batch.decode(seq, n_prompt + said.size() - 1, said.back()), rows);
        said.push_back(rows.token(0));
    }
    // In one pass, as rows: the best value of each is the next token.
    executor.truncate(seq, n_prompt);
    ictus_logits_t full{};
    full.struct_size = sizeof full;
    full.kind = ICTUS_LOGITS_FULL;
    batch.clear();
    executor.run(batch.verify(seq, n_prompt, {said[0], said[1]}, &full), rows);
    CHECK(rows.rows[0].count == 2 && rows.logits.size() == 2 * info.vocab);
    for (std::size_t row = 0; row < 2; row++) {
        const float *values = rows.logits.data() + row * info.vocab;
        CHECK(*std::max_element(values, values + info.vocab) == values[said[row + 1]]);
    }
    CHECK(executor.frontier(seq) == n_prompt + 2 && executor.held(seq)[ICTUS_DOMAIN_SLOTS - 1] == 1);
    CHECK(executor.frees({seq}) == executor.held(seq));

    // A refusal says what is short; a wait on its ticket ends with the close that gives it back.
    const ictus::Capacity capacity = executor.capacity();
    std::vector<ictus_executor_seq_t> hoard;
    ictus_ticket_t ticket{};
    while (ticket.watch == 0) {
        try {
            hoard.push_back(executor.admit(ictus::Admission({1}, 2)));
        } catch (const ictus::Refusal &refusal) {
            CHECK(refusal.blocked() && refusal.status() == ICTUS_NEEDS_REPLAN && refusal.record().blocked.n_short > 0);
            ticket = refusal.ticket();
        }
    }
    CHECK(!capacity.changed(ticket) && !capacity.wait(ticket, std::chrono::milliseconds(1)));
    ictus::Wait wait = capacity.begin_wait(ticket);
    std::thread waiting([&] { CHECK(capacity.wait(ictus::ticket_union(ticket, ticket))); });
    const ictus_receipt_t receipt = executor.close(hoard.back(), ICTUS_END_CANCELLED);
    waiting.join();
    CHECK(receipt.freed[ICTUS_DOMAIN_SLOTS - 1] == 1 && wait.descriptor() >= 0 && wait.end() && capacity.changed(ticket));
    CHECK(thrown([&] { executor.close(hoard.back(), ICTUS_END_CANCELLED); }) == ICTUS_ERR_UNKNOWN_HANDLE);
    hoard.pop_back();
    for (const ictus_executor_seq_t &one : hoard) executor.close(one, ICTUS_END_FAILED);
    executor.close(seq, ICTUS_END_COMPLETED, n_prompt, 2);
    CHECK(executor.stats().completed == 1 && executor.stats().accounting_faults == 0);
    CHECK(thrown([&] { executor.grow(ictus_blocked_t{}); }) == ICTUS_REJECT_BAD_STRUCT);

    {
        ictus::Model host = executor.tick_host();
        CHECK(thrown([&] { executor.tick_host(); }) == ICTUS_EBUSY);
        host.create_rings();
        CHECK(greedy(host, "Once upon a time", 8) == said);
        CHECK(ictus::Capacity(host.handle()).memory().own_claimed == capacity.memory().own_claimed);
    }
    ictus::Executor moved = std::move(executor);
    CHECK(moved.shutdown().pending == 0);
    CHECK(thrown([&] { moved.admit(ictus::Admission({1}, 2)); }) == ICTUS_ERR_UNKNOWN_HANDLE);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    // Open: progress is told and may break off.
    ictus::Options options;
    options.record.context_tokens = 128;
    std::uint64_t calls = 0;
    options.on_progress = [&](std::uint64_t done, std::uint64_t total) {
        calls += done <= total ? 1 : 1000;
        return true;
    };
    ictus::Model model = ictus::Model::open(argv[1], options);
    CHECK(calls > 1 && calls < 1000 && model.info().context_tokens == 128);
    options.on_progress = [](std::uint64_t, std::uint64_t) { return false; };
    CHECK(thrown([&] { ictus::Model::open(argv[1], options); }) == ICTUS_EBUSY);
    options.on_progress = [](std::uint64_t, std::uint64_t) -> bool { throw 1; };
    CHECK(thrown([&] { ictus::Model::open(argv[1], options); }) == ICTUS_EBUSY);
    CHECK(ictus::Model::plan(argv[1]).total_bytes > 0);

    // Log: what fails is told, and what the callback throws goes no further.
    unsigned lines = 0;
    model.on_log(ICTUS_LOG_WARN, [&](std::uint32_t, const char *) {
        lines++;
        throw 1;
    });
    CHECK(thrown([&] { model.stage_prompt({1}); }) == ICTUS_ERR_OP_UNSUPPORTED && lines == 1);
    CHECK(model.last_error().find("ictus_model_stage_prompt: ") == 0);

    // Text: both ways, and streamed.
    const std::string text = "Once there was a \xC3\xA9l\xC3\xA9phant.";
    const auto tokens = model.tokenize(text, 0);
    CHECK(model.detokenize(tokens) == text);
    std::string streamed;
    {
        ictus::Text stream = model.begin_text();
        for (const std::uint32_t token : tokens) streamed += stream.push(token);
        CHECK(thrown([&] { stream.push(ICTUS_NO_TOKEN); }) == ICTUS_REJECT_BOUNDS);
        streamed += stream.end();
        ictus::Text left = model.begin_text();
        ictus::Text moved = std::move(left);
    }
    // A vocabulary that puts a space before a text takes it off again only at the start of one.
    CHECK(streamed == text || streamed == " " + text);
    const auto info = model.info();
    CHECK(model.is_end(info.eos_token) && !model.is_end(ICTUS_NO_TOKEN));
    CHECK(!model.capability_descriptor().empty() || ictus_capability_descriptor(model.handle()) == nullptr);

    // Tick: two models at once, from two threads, say the same as one alone.
    model.create_rings();
    ictus::Model other = ictus::Model::open(argv[1], [] {
        ictus::Options small;
        small.record.context_tokens = 128;
        small.record.threads = 1;
        return small;
    }());
    other.create_rings();
    std::vector<std::uint32_t> first, second;
    std::thread thread([&] { first = greedy(other, "One day", 24); });
    second = greedy(model, "One day", 24);
    thread.join();
    CHECK(first == second && first.size() == 24);
    ictus::Events events;
    ictus::Plan again(2);
    CHECK(model.try_tick(again, events) == ICTUS_REJECT_ILLEGAL_COMBINATION);
    CHECK(thrown([&] { model.tick(again); }) == ICTUS_REJECT_ILLEGAL_COMBINATION);
    model.set_yield(true);
    model.set_yield(false);
    model.set_latency(true);

    // Rows of a HOST lane.
    ictus_ring_shape_t shape{};
    shape.logits_slots = 2;
    shape.row_logits = info.vocab_size;
    model.create_rings(shape);
    ictus_lane_admit_t admit{};
    admit.lane_tag = 5;
    admit.prompt = model.stage_prompt({1, 2, 3});
    admit.sampling = ICTUS_SAMPLING_HOST;
    ictus::Plan plan(3);
    plan.admit(admit).prefill(5, 0, 3).decode(5, 1);
    CHECK(model.read_logits(model.tick(plan).emits().at(0).logits_row).size() == info.vocab_size);

    // Sequences end with their objects, or with the call that takes them.
    {
        ictus::Sequence sequence = model.create_sequence();
        ictus::Sequence moved = std::move(sequence);
        CHECK(moved.handle() != nullptr && sequence.handle() == nullptr);
        CHECK(ictus_tick_sequence_free(model.handle(), moved.release()) == ICTUS_STATUS_OK);
    }

    // Texts outside lanes.
    const std::vector<float> vector = model.embed({1, 2, 3});
    CHECK(vector.size() == info.hidden && vector == model.embed({1, 2, 3}));
    CHECK(thrown([&] { model.embed({}); }) == ICTUS_REJECT_BOUNDS);
    std::uint32_t token = 0, whole = 0;
    CHECK(model.layers() == info.layers && model.forward_stage({1, 2, 3}, 0, info.layers, {}, whole).empty());
    const std::vector<std::uint8_t> passed = model.forward_stage({1, 2, 3}, 0, 1, {}, token);
    CHECK(!passed.empty() && token == ICTUS_NO_TOKEN);
    CHECK(model.forward_stage({1, 2, 3}, 1, info.layers, passed, token).empty() && token == whole);
    CHECK(thrown([&] { model.forward_stage({1, 2, 4}, 1, info.layers, passed, token); }) == ICTUS_REJECT_BAD_STRUCT);

    // Adapters: this one cannot be read.
    CHECK(thrown([&] { model.load_adapter("/nonexistent"); }) == ICTUS_ERR_UNKNOWN_HANDLE);
    CHECK(model.last_error().find("/nonexistent") != std::string::npos);
    CHECK(thrown([&] { model.unload_default_adapter(); }) == ICTUS_ERR_UNKNOWN_HANDLE);
    CHECK(model.sampling_defaults().struct_size == sizeof(ictus_claimed_sampling_t));
    CHECK(std::string(ictus_explain(ICTUS_NEEDS_REPLAN)).find("plan again") != std::string::npos);

    // Moves leave nothing behind.
    ictus::Model owner = std::move(model);
    CHECK(model.handle() == nullptr && owner.info().vocab_size == info.vocab_size);

    // One model from many threads: the calls wait for each other.
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (int round = 0; round < 50; round++) CHECK(owner.tokenize(text, 0) == tokens);
        });
    for (std::thread &running : threads) running.join();

    // Chats.
    const std::vector<ictus_chat_message_t> messages = {{"user", "Hello!"}};
    if (owner.info().has_chat_template == 0) CHECK(thrown([&] { owner.chat_tokens(messages); }) == ICTUS_ERR_OP_UNSUPPORTED);
    if (std::string(argv[2]) != "-") {
        ictus::Model chat = ictus::Model::open(argv[2]);
        CHECK(chat.info().has_chat_template == 1);
        const auto prompt = chat.chat_tokens(messages);
        CHECK(chat.detokenize(prompt, ICTUS_TEXT_SHOW_SPECIAL).find("Hello!") != std::string::npos);
        CHECK(chat.chat_tokens(messages, 0).size() < prompt.size());
    }
    // A driver: the same text by steps and by a thread, and by range-for.
    std::string said[2];
    for (const bool threaded : {false, true}) {
        ictus::DriverOptions choices;
        ictus::Driver driver(owner, choices.threaded(threaded));
        ictus::Request request("Once upon a time");
        request.max_tokens(20).logprobs(2).priority(1).stop("never said");
        ictus::Stream stream = driver.submit(request);
        CHECK(stream.request() == 1);
        std::size_t n = 0, n_logprobs = 0;
        bool started = false, finished = false;
        for (const ictus::DriverEvent &event : stream) {
            CHECK(event.request() == 1 && !finished);
            started = started || event.started();
            finished = event.finished();
            n += event.tokens.size();
            n_logprobs += event.logprobs.size();
            said[threaded ? 1 : 0] += event.text;
            if (finished) CHECK(event.record.answer_tokens == n && event.record.finish == ICTUS_DRIVER_FINISH_MAX_TOKENS);
        }
        CHECK(started && finished && n == 20 && n_logprobs == 20 && stream.request() == 0);
        // A stream that is dropped is cancelled; a model has one driver; what is refused says why.
        { ictus::Stream dropped = driver.submit(ictus::Request("A cat").max_tokens(100000)); }
        CHECK(thrown([&] { ictus::Driver second(owner); }) == ICTUS_EBUSY);
        CHECK(thrown([&] { driver.submit(ictus::Request(std::vector<std::uint32_t>{})); }) == ICTUS_REJECT_ILLEGAL_COMBINATION);
        CHECK(thrown([&] { driver.submit(ictus::Request("x").stop("")); }) == ICTUS_REJECT_BOUNDS);
        CHECK(!driver.cancel(99));
        if (threaded) CHECK(thrown([&] { driver.step(); }) == ICTUS_ERR_OP_UNSUPPORTED);
    }
    CHECK(said[0] == said[1] && !said[0].empty());

    executed(owner);

    std::puts("wrapper: ok");
    return 0;
}
