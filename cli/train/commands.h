/* commands.h: the sub-commands of this folder. */
#ifndef CLI_TRAIN_COMMANDS_H
#define CLI_TRAIN_COMMANDS_H

#include "common/cli.h"

extern const cli_command cli_train, cli_compare, cli_export, cli_prune;

#endif
