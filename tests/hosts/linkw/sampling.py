"""The picking rules of tick.md section 11, from the text, in double precision.

The engine computes in single precision, so a draw that falls close to a boundary may go either way: `draws` answers
every id that a target or a threshold moved by a little would give. Most positions have one.
"""

import math

MASK64 = 2**64 - 1
WINDOW = 64
SLACK = 2e-6


def greedy(request):
    """The lowest index among the maxima of the newest row (T-115)."""
    row = request.rows[-1]
    return row.index(max(row))


def uniform(position):
    """T-119."""
    z = (position + 0x9E3779B97F4A7C15) & MASK64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK64
    z ^= z >> 31
    return (z >> 11) / 2**53


def penalised(row, committed, exempt, params):
    """T-113 over the last 64 committed tokens."""
    repeat = params.repeat_penalty or 1.0
    if repeat == 1.0 and params.presence_penalty == 0 and params.freq_penalty == 0:
        return row
    row = list(row)
    counts = {}
    for token in committed[-WINDOW:]:
        counts[token] = counts.get(token, 0) + 1
    for token, count in counts.items():
        if token in exempt:
            continue
        if repeat != 1.0:
            row[token] = row[token] / repeat if row[token] > 0 else row[token] * repeat
        row[token] -= params.presence_penalty + params.freq_penalty * count
    return row


def log_sum_exp(row):
    most = max(row)
    return most + math.log(math.fsum(math.exp(value - most) for value in row))


def kept(row, params, slack):
    """The candidates that the cuts of T-117 leave, as (id, probability), and whether any cut applied."""
    inverse = 1.0 / params.temperature
    scaled = [value * inverse for value in row]
    most = max(scaled)
    weights = [0.0 if value - most <= -36.7368 else math.exp(value - most) for value in scaled]
    total = math.fsum(weights)
    ranked = sorted(((weight / total, -token) for token, weight in enumerate(weights)), reverse=True)
    ranked = [(-token, probability) for probability, token in ranked]
    cut = False
    if params.top_k:
        ranked = ranked[: min(max(params.top_k, 1), len(ranked))]
        cut = True
    if params.min_p > 0:
        least = params.min_p * ranked[0][1] * (1 + slack)
        ranked = [pair for pair in ranked if pair[1] >= least] or ranked[:1]
        cut = True
    if params.top_p < 1.0:
        reached = 0.0
        for place, (_, probability) in enumerate(ranked):
            reached += probability
            if reached >= params.top_p + slack:
                ranked = ranked[: place + 1]
                break
        cut = True
    return ranked, cut


def pick(ranked, cut, u):
    """T-118."""
    target = u * (math.fsum(probability for _, probability in ranked) if cut else 1.0)
    for token, probability in ranked:
        if target < probability:
            return token
        target -= probability
    return max((place, token) for place, (token, probability) in enumerate(ranked) if probability > 0)[1]


def draws(row, params, position):
    """The ids that the draw at this position may give: one, but for the slack of single precision."""
    u = uniform(position)
    found = set()
    for threshold in (-SLACK, 0.0, SLACK):
        ranked, cut = kept(row, params, threshold)
        found |= {pick(ranked, cut, u + shift) for shift in (-SLACK, 0.0, SLACK)}
    return found


U_VECTORS = {
    0: 0.8833108082136426,
    7: 0.3898297483912715,
    8: 0.6185046250316943,
    1003: 0.6038906202342335,
    MASK64: 0.8939429202831845,
}
