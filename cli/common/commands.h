/* commands.h: the sub-commands. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "common/cli.h"

extern const cli_command cli_bench, cli_compare, cli_export, cli_influence, cli_info, cli_plan,
    cli_prune, cli_replay, cli_train;

#endif
