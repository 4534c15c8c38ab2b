/* recording_pack.c: `natgrad pack`: store a recorded folder as one safetensors file: the arrays under their names, and
 * case.json unchanged in the metadata. */
#include "commands.h"
#include "recording.h"

#include <stdio.h>
#include <string.h>

static int take(void *user, const char *name, const char *value) {
  (void)user;
  (void)name;
  (void)value;
  return CLI_OK;
}

static int run(const cli_command *self, int argc, char **argv) {
  cli_args args;
  int rc = cli_parse(self, argc, argv, take, NULL, &args);
  if (rc != CLI_OK) return rc < 0 ? CLI_OK : rc;
  recording_folder folder = {0};
  char message[1024] = "";
  if (args.operands != 2) {
    rc = cli_bad("pack: expected DIR and OUT.safetensors, got %d name%s", args.operands,
                 args.operands == 1 ? "" : "s");
  } else {
    rc = recording_folder_read(args.operand[0], &folder);
  }
  if (rc == CLI_OK) {
    const ngio_text text[] = {{"case.json", folder.text}};
    if (ngio_tensors_write(args.operand[1], folder.tensor, folder.n, text, 1, message,
                           sizeof message) != NGIO_OK) {
      rc = cli_bad("%s", message);
    } else { /* check the file with the reader of `replay` */
      ngio_tensors *back = NULL;
      if (ngio_tensors_read(args.operand[1], NULL, &back, message, sizeof message) != NGIO_OK) {
        rc = cli_bad("%s", message);
      } else {
        printf("%s: %d arrays\n", args.operand[1], folder.n);
      }
      ngio_tensors_close(&back);
    }
  }
  recording_folder_free(&folder);
  cli_args_free(&args);
  return rc;
}

const cli_command cli_pack = {
    .name = "pack",
    .usage = "DIR OUT.safetensors",
    .summary = "pack a recording (case.json and .npy files) into one file",
    .text = "",
    .run = run,
};
