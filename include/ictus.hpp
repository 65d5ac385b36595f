/* ictus.hpp: C++17 over ictus.h, header-only.
 *
 * Each class owns one handle and releases it: move-only, empty after a move. What the C functions refuse is thrown as
 * ictus::Error, which carries the status and the text of the failure; Model::try_tick returns the status instead, for hosts to which
 * a refused plan is an ordinary answer. Views (Events, Span) point into the model and are valid as long as ictus.h says.
 *
 * Threads: as in ictus.h. A Model may be used from any thread, one call at a time; Model::set_yield and Model::set_latency at any
 * time; an Executor and a Capacity any number of calls at a time. Callbacks must not throw; those of these headers catch what they
 * call.
 *
 * Include this one; the headers below ictus/ are its parts.
 */
#ifndef ICTUS_HPP
#define ICTUS_HPP

#include "ictus/base.hpp"
#include "ictus/capacity.hpp"
#include "ictus/driver.hpp"
#include "ictus/executor.hpp"
#include "ictus/model.hpp"
#include "ictus/tick.hpp"

#endif /* ICTUS_HPP */
