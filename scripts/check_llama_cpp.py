"""Opens a model in llama.cpp and sets its log-probabilities beside those of reference.py.

    python3 check_llama_cpp.py ../models/ictus-tiny.gguf ../tests/data/*.gguf

Prints, for random prompts, the largest difference among the ten likeliest next tokens. llama.cpp rounds activations to
8 bits (to 16 before 16-bit weights), so 0.01 to 0.4 is agreement here, and whole units are not. It does not
know sliding windows for the family llama: llama-window.gguf agrees for prompts of up to 8 tokens and not beyond.

Needs the PyPI package xllamacpp. Tokens that are no complete UTF-8 come back without numbers and are left out.
"""

import os
import sys

import numpy as np
import xllamacpp

import reference

LENGTHS = [1, 2, 3, 5, 7, 8, 9, 12, 20, 40, 60, 100, 150] * 3


def serve(path):
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = 256, 1, 0, False, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def compare(path):
    server, model = serve(path), reference.Model(path)
    rng = np.random.Generator(np.random.Philox(3))
    worst, same, tried = {}, 0, 0
    for length in LENGTHS:
        ids = rng.integers(0, model.vocab, length).tolist()
        answer = server.handle_completions({"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": 10, "cache_prompt": False})
        tokens = (answer["choices"][0]["logprobs"] or {"content": []})["content"]
        if len(tokens) != 1:
            continue
        row = model.logits(ids, [length - 1])[0]
        row -= row.max() + np.log(np.exp(row - row.max()).sum())
        difference = max(abs(t["logprob"] - row[t["id"]]) for t in tokens[0]["top_logprobs"])
        worst[length] = max(worst.get(length, 0.0), difference)
        tried += 1
        same += tokens[0]["id"] == int(row.argmax())
    by_length = ", ".join(f"{n}: {worst[n]:.3f}" for n in sorted(worst))
    print(f"{os.path.basename(path)}: likeliest token the same in {same}/{tried}; by prompt length {by_length}", flush=True)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        compare(path)
