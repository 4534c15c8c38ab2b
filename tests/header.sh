#!/usr/bin/env bash
# header.sh CC [LIBRARY]: natgrad.h compiles alone and included twice, as C11 and C++17, without warnings; it includes
# only stddef.h and stdint.h.
set -euo pipefail
cc=$1 library=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The code in the comments of the header, in C and in C++.
cat >"$work/a.c" <<'END'
#include <natgrad.h>
#include <natgrad.h>
#include <stdio.h>
#define INIT(type, name) type name; type##_init(&name, sizeof name)
#ifdef __cplusplus
#define OUT(type, name) type name{}; name.struct_size = sizeof name
#else
#define OUT(type, name) type name = {.struct_size = sizeof name}
#endif
int main(void) {
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  ng_layer conv;
  int32_t index;
  char why[200] = "";
  INIT(ng_context_config, config);
  INIT(ng_batch, batch);
  INIT(ng_sgd, sgd);
  INIT(ng_adamw, adamw);
  OUT(ng_component, component);
  OUT(ng_option_info, option);
  OUT(ng_method_info, method);
  OUT(ng_published_info, published);
  OUT(ng_report, report);
  OUT(ng_station_report, station);
  OUT(ng_layer_report, layer);
  OUT(ng_explain_row, row);
  const ng_transport *none = config.transport;
#if defined(NG_EXPERIMENTAL)
  OUT(ng_transport, transport);
  OUT(ng_collective, collective);
  OUT(ng_field_info, field);
  if (field.struct_size != sizeof field || ng_state_count(p) != 0) return 1;
  ng_threads *group = NULL;
  if (ng_threads_create(2, &group) != NG_OK ||
      ng_threads_transport(group, 0, &transport, sizeof transport) != NG_OK ||
      collective.struct_size != sizeof collective)
    return 1;
  ng_threads_destroy(&group);
#endif
  ng_layer_init(&conv, NG_CONV2D, sizeof conv);
  if (ng_context_create(NG_VERSION, &config, why, sizeof why, &ctx) != NG_OK) return puts(why), 1;
  if (ng_precond_create(ctx, "method=natgrad", &p) != NG_OK ||
      ng_add_linear(p, "fc", 4, 2, 1, &index) != NG_OK || ng_ready(p) != NG_OK)
    return puts(ng_last_error(ctx)), 1;
  batch.samples = 2;
  if (ng_begin(p, &batch) != NG_OK || ng_report_read(p, &report) != NG_OK ||
      ng_report_station(p, 0, &station) != NG_OK || ng_report_layer(p, index, &layer) != NG_OK ||
      ng_explain(p, 0, &row) != NG_OK ||
      ng_component_info(0, &component) != NG_OK || ng_option_at(0, &option) != NG_OK ||
      ng_method_at(0, &method) != NG_OK || ng_method_published_at(1, 0, &published) != NG_OK)
    return puts(ng_last_error(ctx)), 1;
  sgd.lr = 0.1;
  adamw.lr = 0.1;
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  return none == NULL ? 0 : 1;
}
END
cp "$work/a.c" "$work/a.cc"

# Without NG_EXPERIMENTAL a program may only have a pointer to a transport.
printf '#include <natgrad.h>\nng_transport *t;\nng_threads *group;\n' >"$work/experimental.c"

warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Werror)
for part in -UNG_EXPERIMENTAL -DNG_EXPERIMENTAL; do
  "$cc" -std=c11 "${warnings[@]}" -Wstrict-prototypes -I"$root/include" $part -c "$work/a.c" -o "$work/a.o"
done
"$cc" -std=c11 -DNG_EXPERIMENTAL -I"$root/include" -c "$work/experimental.c" -o "$work/e.o"
if "$cc" -std=c11 -I"$root/include" -c "$work/experimental.c" -o "$work/e.o" 2>"$work/log"; then
  echo "what is experimental can be used without NG_EXPERIMENTAL"
  exit 1
fi
grep -q ng_threads "$work/log" && ! grep -q "name.*ng_transport" "$work/log" || { cat "$work/log"; exit 1; }

# The ways to create options (options_idioms.c).
"$cc" -std=c11 "${warnings[@]}" -Wstrict-prototypes -I"$root/include" -c "$root/tests/options_idioms.c" -o "$work/o.o"

# A binding of another language calls exported functions, so the header must not define functions.
inline=$(grep -n 'static inline' "$root/include/natgrad.h" || true)
[[ -z $inline ]] || { echo "natgrad.h has functions of its own: $inline"; exit 1; }

others=$(grep -E '^ *# *include' "$root/include/natgrad.h" | grep -vE '<std(def|int)\.h>' || true)
[[ -z $others ]] || { echo "natgrad.h includes more than it may: $others"; exit 1; }

cxx=${CXX:-}
for candidate in c++ g++ clang++; do
  [[ -n $cxx ]] || ! command -v $candidate >/dev/null || cxx=$candidate
done
[[ -n $cxx ]] || { echo "skipped: no C++ compiler"; exit 77; }
for part in -UNG_EXPERIMENTAL -DNG_EXPERIMENTAL; do
  "$cxx" -std=c++17 "${warnings[@]}" -Wold-style-cast -Wzero-as-null-pointer-constant -I"$root/include" $part \
    -c "$work/a.cc" -o "$work/a.o"
done
"$cxx" -std=c++17 -x c++ "${warnings[@]}" -Wold-style-cast -Wzero-as-null-pointer-constant -I"$root/include" \
  -c "$root/tests/options_idioms.c" -o "$work/o.o"
# Run the program, unless the library needs a sanitizer.
if [[ -n $library ]]; then
  "$cxx" "$work/a.o" "$library" -Wl,-rpath,"$(dirname "$library")" -o "$work/a"
  "$work/a"
fi
