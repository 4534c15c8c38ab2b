/* commands.h: the sub-commands of this folder. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "common/cli.h"

extern const cli_command cli_info, cli_replay, cli_bench, cli_plan;

#endif
