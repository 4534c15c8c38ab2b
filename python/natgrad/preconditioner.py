"""Preconditioners.  Their step(), between loss.backward() and optimizer.step(), preconditions the gradients in
place."""
import ctypes as c
import math

from . import _abi, _attention, _core, _cuda_libraries, _layers, _plan, _skip, _state, _tensors
from ._binding import ParameterBinding
from ._core import make_error, with_core_lock, to_float, to_int, short_repr
from ._hooks import Observer
from ._methods import CLASSES


class Preconditioner(ParameterBinding, _state.StateMethods):
    """A preconditioner for the gradients of a model.

        preconditioner = natgrad.KFAC(model, lr=0.1, damping=0.003)
        loss.backward()
        preconditioner.step()      # between backward and the step of the optimizer
        optimizer.step()

    model              an nn.Module, or DistributedDataParallel around one, with its parameters on the CPU
    lr                 the optimizer's learning rate, which the clip factor uses; a number, or a function of the step
    accumulation_steps the number of micro-batches of a step; the caller divides each loss by this number
    grad_scaler        a GradScaler, or a function that returns the loss scale
    samples            'model': count samples on the first tensor passed to the model; 'layer': on each layer's input
    batch_first        False: arrays are [positions, samples, features]
    reduction          'mean' | 'sum': the loss is the mean or the sum over the samples
    process_group      a group of torch.distributed; None: the default group, if initialised; False: this process alone
    own_batches        False: the ranks share one batch in equal parts (uneven parts: see begin()), and results equal
                       one rank with this batch.  True: the samples of a rank count as a batch of their own for
                       stat_batch, published scales and damping_leak, as in the published programs
    threads            the number of threads of the library; 0: one per processor
    linalg             the linear algebra: 'cpu' | 'ref' | 'cuda:INDEX'; None: by the device of the model.  A model on CUDA needs
                       the library natgrad_cuda (docs/cuda.md); all work is on the stream that is current now
    options            options of the library (natgrad.options()); live options may be functions of the step

    `layer_options` sets options of layers by name, {"fc": "damping=0.1"}; the option `per_layer` does so by globs,
    "fc*: method=mfac window=16; conv2d: damping=0.3".  `skip_layers` is a Python regular expression or a list of
    expressions; a layer is skipped if an expression is found in its name or in the name of its class.
    """

    method = None  # the default method; None: natgrad, and every method is accepted
    _skip_patterns = ()  # compiled regular expressions of skip_layers

    def __init__(self, model, *, lr=0.1, accumulation_steps=1, grad_scaler=None, samples="model", batch_first=True,
                 reduction="mean", process_group=None, threads=0, linalg=None, layer_options=None, own_batches=False,
                 **options):
        self._setup(model, self._make_options(options), lr, accumulation_steps, grad_scaler, samples, batch_first, reduction,
                    process_group, threads, linalg, layer_options, own_batches=own_batches, warns_of_passes=True)

    # ---- construction

    def _make_options(self, given):
        """Return the options.  A value that is a function of the step is called with 0 now, and again before each
        step."""
        self._functions = {}
        chosen = _core.Options()
        chosen.set("method", given.pop("method", None) or self.method or "natgrad")
        given = dict(given)
        self._skip_patterns = _skip.compile_skip_patterns(given.pop("skip_layers", None))
        live = {row["name"] for row in _core.options() if row["live"]}
        for name, value in given.items():
            if callable(value):
                if name not in live:
                    raise make_error(_abi.NG_ERR_ARG, f"{name}: not a live option, so its value cannot be a "
                                     "function of the step")
                self._functions[name] = value
                value = self._live_values_at(0)[name]
            chosen.set(name, value)
        chosen.check_values()
        method = chosen.get("method")
        if self.method is not None and _core.traits(method) != _core.traits(self.method):
            name = next((name for name, other, _ in CLASSES if _core.traits(other) == _core.traits(method)), "another class")
            raise make_error(_abi.NG_ERR_ARG, f"{type(self).__name__}: method '{method}' belongs to {name}")
        return chosen

    def _setup(self, model, chosen, lr=None, accumulation_steps=1, grad_scaler=None, samples="layer", batch_first=True,
               reduction="mean", process_group=None, threads=0, linalg=None, layer_options=None, exclusion_reason=None,
               own_batches=True, warns_of_passes=False):
        to_int("accumulation_steps", accumulation_steps, most=2**31 - 1)
        if not (grad_scaler is None or hasattr(grad_scaler, "get_scale") or callable(grad_scaler)):
            raise make_error(_abi.NG_ERR_ARG, f"grad_scaler is {grad_scaler}, expected a GradScaler or a function that returns "
                             "the loss scale")
        if not (linalg is None or isinstance(linalg, str)):
            raise make_error(_abi.NG_ERR_ARG, f"linalg is {linalg!r}, expected 'cpu', 'ref' or 'cuda'")
        if not (layer_options is None or isinstance(layer_options, dict)):
            raise make_error(_abi.NG_ERR_ARG, f"layer_options is {short_repr(layer_options)}, expected {{layer name: options}}")
        for name, line in (layer_options or {}).items():
            _core.to_utf8(f"layer_options[{short_repr(name)}]", line)
        if not isinstance(own_batches, bool):
            raise make_error(_abi.NG_ERR_ARG, f"own_batches is {own_batches!r}, expected True or False")
        if samples not in ("model", "layer"):
            raise make_error(_abi.NG_ERR_ARG, f"samples is '{samples}', expected 'model' or 'layer'")
        if reduction not in ("mean", "sum"):
            raise make_error(_abi.NG_ERR_ARG, f"reduction is '{reduction}', expected 'mean' or 'sum'")
        _layers.check_model_supported(model)
        self._is_compiled = _layers.is_compiled(model)
        self.model = _layers.unwrap(model)
        _layers.check_model_supported(self.model)
        self.lr, self.accumulation_steps, self.grad_scaler = lr, accumulation_steps, grad_scaler
        self._chosen, self._warns_of_passes, self._warns_of_loss, self._reduction = chosen, warns_of_passes, warns_of_passes, reduction
        # Windows cover all parameters.  Fused updates, clip = ratio, and mask and decay of windows read the weights.
        lines = " ".join([chosen.get("per_layer"), *(layer_options or {}).values()])  # their lines may select windows
        self._binds_all = (chosen.get("update") != "gradient" or self._has_window() or "method=" in lines)
        masked = chosen.get("window_mask") == "1" or "window_mask" in lines
        self._binds_weights = (chosen.get("update") != "gradient" or chosen.get("clip") == "ratio" or masked
                               or float(chosen.get("window_decay")) > 0 or "window_decay" in lines)
        self.entries = self._plan_entries(exclusion_reason)
        if self._skip_patterns:
            chosen.set("skip_layers", _skip.make_skip_globs(self._skip_patterns, self.entries))
        self._warned_layers, self._steps = set(), 0
        self.rescued = self.unobserved = 0  # number of steps with status 1; with status 3
        device, stream, memory = self._check_tensors_supported(), None, None
        if device is not None and device.type == "cuda":
            here = f"cuda:{device.index}"
            if linalg not in (None, here):
                raise make_error(_abi.NG_ERR_ARG, f"linalg is {linalg!r} and the model is on {device}: expected None or '{here}'")
            linalg, stream, memory = here, _tensors.current_stream(device), _tensors.device_memory(device)
            _cuda_libraries.load()
        self._core = _core.Precond(chosen, threads, self._make_transport(process_group), linalg,
                                  *self._model_and_stage_transports(), stream=stream, device_memory=memory)
        lines = [chosen.get("per_layer"), *(layer_options or {}).values()]
        expand = (chosen.get("positions") == "expand" and chosen.get("stat_scale") in ("textbook", "chainerkfac")
                  and not any(name in line for line in lines for name in ("positions", "stat_scale", "method")))
        divides_batch = not own_batches and self._needs_whole_batch(lines)
        if self._is_tensor_parallel():
            divides_batch = self._check_tensor_parallel(divides_batch)
        self._register_entries(layer_options or {})
        self._assign_param_groups()
        self._make_bindings()
        if self._binds_weights:  # ng_ready reads dtypes of weights and, for window_mask, which weights are 0
            self._bind_gradients_and_weights()
        self._core.call("ready")
        self._observer = Observer(self._core, self._layers_to_observe(), self.model, chosen.get("calls") != "mean", samples,
                                  batch_first, reduction, expand, self._is_compiled)
        if self._has_sharded_parameters():
            self._observer.sums_outside = self._is_fully_sharded()  # in backward, fully_shard hides earlier gradients
            self._observer.compared = None
        _attention.add_hooks(self._observer)
        self._observer.scale = self._loss_scale
        self._observer.fixed_scale = self._loss_scale() if grad_scaler is None else None
        if divides_batch and self._core.transport is not None:
            self._observer.rank_of_equal_parts = self._core.transport.rank, self._core.transport.size
        self._find_whether_ranks_save_alone()
        self._warn_unpreconditioned()

    def _plan_entries(self, exclusion_reason):
        all_kinds = not (self._has_window() or self._is_for_plain_layers())
        return _plan.plan_entries(self.model, exclusion_reason, embeddings=self._embedding_problem(), all_kinds=all_kinds,
                                  attention=all_kinds and not self._is_compiled)

    def _is_for_plain_layers(self):
        """Return True for a method whose program has no curvature of norms, embeddings and attention."""
        rows = _core.Options()
        rows.set("method", self._chosen.get("method"))
        return rows.get("norm_block") == "none"

    def _embedding_problem(self):
        """Return the reason why embeddings have no curvature, or ''."""
        method = self._chosen.get("method")
        if self._has_window():
            return "a parameter of Embedding"
        if method == "ekfac" or "Kronecker factors" not in _core.traits(method):
            return f"method {method} does not support embeddings"
        for option, value in (("solver", "product"), ("positions", "reduce")):
            if self._chosen.get(option) == value:
                return f"{option} = {value} does not support embeddings"
        if self._is_for_plain_layers():
            return f"method {method} does not precondition embeddings, as published"
        return ""

    def _has_window(self):
        return "a window" in _core.traits(self._chosen.get("method"))

    def _needs_whole_batch(self, lines):
        """Return True if the library must know the batch of all ranks, because results depend on its split over
        ranks."""
        chosen = self._chosen
        return (chosen.get("stat_batch") != "0" or chosen.get("damping_leak") in ("owner", "all")
                or chosen.get("stat_scale") in ("kaisa", "eva", "chainerkfac")
                or any(name in line for line in lines
                       for name in ("stat_batch", "damping_leak", "stat_scale", "method")))

    @staticmethod
    def _make_transport(group):
        if group is False:
            return None
        from . import _distributed
        return _distributed.make_transport(group)

    def _model_and_stage_transports(self):
        """Return the transports of the model group and of the group of pipeline stages."""
        return None, None

    def _register_entries(self, layer_options):
        index, window = c.c_int32(), self._has_window()
        for entry in self.entries:
            layer = entry.make_ng_layer(layer_options.get(entry.name))
            if layer is None and window and not entry.parameters()[0].requires_grad:
                entry.frozen = True  # not registered, because a window covers all registered parameters
                continue
            if layer is not None:
                layer_options.pop(entry.name, None)
                self._core.call("add_layer", c.byref(layer), c.byref(index))
            else:
                count = entry.parameters()[0].numel()
                self._core.call("add_tensor", _core.to_utf8("the name of a parameter", entry.name), count, c.byref(index))
            entry.index = index.value
        if layer_options:
            raise make_error(_abi.NG_ERR_ARG, f"layer_options: no layer '{next(iter(layer_options))}'")

    def _assign_param_groups(self):
        """Set the groups of parameters; optimizers override this method."""

    def _layers_to_observe(self):
        """Return the layers to observe: all layers except excluded layers and layers that a window covers."""
        windows = {row["name"].encode() for row in _core.methods() if "a window" in row["traits"]}
        rows = [row for row in self._read_report_rows("explain", _abi.ng_explain_row)
                if row.family != b"none" and row.method not in windows]
        observed = {row.index for row in rows}
        measured = {row.index for row in rows if row.method == b"ekfac"}  # second moments of samples
        layers = [e for e in self.entries if isinstance(e, _layers.Layer) and e.index in observed]
        for layer in layers:
            if layer.index in measured:
                layer.needs_input_and_gradient = layer.lends_input = True
        return layers

    def _warn_unpreconditioned(self):
        """Warn if more than a fifth of the elements of matrices have no curvature, or a matrix that several modules use.
        Matrices that the method or the user excluded do not count."""
        sizes = {entry: entry.count_matrix_elements() for entry in self.entries}
        left = [entry for entry in self.entries if not isinstance(entry, _layers.Layer) and not entry.is_excluded_by_choice]
        missing, total = sum(sizes[entry] for entry in left), sum(sizes.values())
        tied = [entry for entry in left if entry.is_tied and sizes[entry] > 0]
        if not self._has_window() and (tied or missing > 0.2 * total):
            largest = sorted(left, key=sizes.get, reverse=True)[:3] if missing > 0.2 * total else []
            named = [entry for entry in largest if sizes[entry] > 0] + [entry for entry in tied if entry not in largest]
            names = "; ".join(f"{entry.name}: {entry.reason}" for entry in named)
            _core.warn_caller(f"{missing / total:.0%} of the elements of matrices have no curvature, so their gradients stay "
                              f"as they are.  {'The largest' if largest else 'Tied'}: {names}.  explain() lists all")

    # ---- a step

    @property
    def steps(self):
        """The number of counted steps: steps that were not skipped."""
        return self._steps

    def _loss_scale(self):
        scaler = self.grad_scaler
        if scaler is None:
            scale = 1.0
        else:
            scale = scaler.get_scale() if hasattr(scaler, "get_scale") else scaler()
        return to_float("the loss scale of grad_scaler", scale) / self.accumulation_steps

    def begin(self, samples, loss_scale=None, whole=None, first=None):
        """Describe the next micro-batch: its number of samples, and `loss_scale`, the factor of its loss (for uneven
        micro-batches: samples / all samples of the step, times the scale of mixed precision).  If the ranks have uneven
        parts of a batch, `whole` is its number of samples and `first` the index of this rank's first sample."""
        samples = to_int("samples", samples)
        if (whole is None) != (first is None) or whole is not None and not (
                0 <= to_int("first", first, least=0) <= to_int("whole", whole) - samples):
            raise make_error(_abi.NG_ERR_ARG, f"first is {short_repr(first)} and whole {short_repr(whole)}, expected both or "
                             f"neither, and 0 <= first <= whole - {samples}")
        scale = None if loss_scale is None else to_float("loss_scale", loss_scale)
        if scale is not None and not (math.isfinite(scale) and scale > 0):
            raise make_error(_abi.NG_ERR_ARG, f"loss_scale is {short_repr(loss_scale)}, expected a finite number above 0")
        self._observer.given_batch = (samples, scale, whole, first)

    def step(self, lr=None):
        """Precondition the gradients in place.  Return the status: 0 done; 1 a block was rescued; 2 skipped, because a
        value was not finite, and gradients are unchanged; 3 a layer was due but not observed, so its old average was
        used."""
        if lr is None:
            lr = self.lr(self._steps) if callable(self.lr) else self.lr
        return self._take_step("step", c.c_double(to_float("lr", lr)))

    @with_core_lock
    def _take_step(self, call, *arguments):
        self._core.check_open()
        if self._observer.has_failed:
            raise make_error(_abi.NG_ERR_STATE, "the last backward pass failed, so gradients are incomplete: "
                             "continue with zero_grad() and the next batch")
        self._check_hooks()
        self._warn_of_loss_factor()
        self._warn_of_reduction()
        self._bind_for_step()
        try:
            status = self._core.call(call, *arguments)
            self._write_shards()
        except _core.Error as error:
            raise self._add_reason(error) from error.__cause__
        finally:
            self._bound_gradients.clear()
        self._observer.start_next_batch()
        if status != _abi.NG_SKIPPED:
            self._steps += 1
            self._set_live_options()
        if status == _abi.NG_RESCUED:
            self.rescued += 1
        elif status == _abi.NG_UNOBSERVED:
            self.unobserved += 1
            self._warn_unobserved()
        return status

    def _set_live_options(self):
        """Set each option that is a function of the step to its value for the next step."""
        for name, value in self._live_values_at(self._steps).items():
            self._core.set(name, value)

    def _live_values_at(self, steps):
        found = {}
        for name, function in self._functions.items():
            try:
                found[name] = function(steps)
            except Exception as error:
                raise make_error(_abi.NG_ERR_ARG, f"{name}: its function failed for step {steps}: {error}") from error
        return found

    # ---- errors and warnings

    def _check_hooks(self):
        if not self._observer.is_enabled:
            return
        if self._observer.has_lost_sample_hooks():
            raise make_error(_abi.NG_ERR_STATE, "the hooks that count the model's samples were removed: make a new "
                             "preconditioner, or set samples='layer'")
        for hook in self._observer.hooks:
            if hook.find_removed() is not None:
                raise make_error(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': its hook was removed: make "
                                 "a new preconditioner")
            name = hook.changed_setting()
            if name:
                raise make_error(_abi.NG_ERR_STATE, f"layer '{hook.layer.name}': its {name} changed after the "
                                 "preconditioner was made: make a new one")

    def _warn_of_loss_factor(self):
        """Warn once, if the gradients show a factor of the loss that the arguments do not declare."""
        ratio, passes = self._observer.read_gradient_ratio(), self._observer.passes
        if ratio is not None and self.grad_scaler is not None:
            if abs(ratio - 1) < 0.01 and self._loss_scale() * self.accumulation_steps > 1.1:
                _core.warn_caller("the gradients still contain the loss scale: call scaler.unscale_(optimizer) before step()")
        elif ratio is not None and 0 < ratio < 1 / 200 and abs(math.log2(ratio) - round(math.log2(ratio))) < 1e-3:
            _core.warn_caller(f"the gradients were divided by {1 / ratio:.0f} after the backward pass, as GradScaler does: pass "
                              "grad_scaler=scaler")
        if self._warns_of_passes and passes > self.accumulation_steps and self._observer.given_batch is None:
            self._warns_of_passes = False
            _core.warn_caller(f"{passes} backward passes before step(), and accumulation_steps is {self.accumulation_steps}: "
                              f"if each loss was divided by {passes}, pass accumulation_steps={passes}")

    def _warn_of_reduction(self):
        """Warn once, if the loss is a sum and `reduction` is 'mean', or the loss is a mean and `reduction` is 'sum'."""
        if not self._warns_of_loss or self._observer.loss is None:
            return
        self._warns_of_loss = False
        (found, values), batch = self._observer.loss, self._observer.open_batch
        if found not in (None, self._reduction) and batch is not None and batch[0] > 1 and values % batch[0] == 0:
            _core.warn_caller(f"the loss is a {found} over the samples, and reduction is '{self._reduction}': pass "
                              f"reduction='{found}'")

    def _add_reason(self, error):
        """If a layer was not observed, or ranks differ in samples, return the error with the reason added."""
        if "ng_batch.whole differs" in str(error):
            return make_error(error.status, f"{error}: their numbers of samples differ.  Call "
                              "begin(samples, whole=..., first=...), or set own_batches=True")
        if "was never observed" not in str(error):
            return error
        for hook in self._observer.hooks:
            layer = hook.layer
            if f"'{layer.name}'" not in str(error):
                continue
            if not self._observer.is_enabled:
                why = "hook_enabled is False, so nothing is observed"
            elif layer.calls:
                why = "it was called, but its output received no gradient"
            elif layer.calls_without_gradients:
                why = "it was only called in eval mode, or without gradients"
            else:
                why = ("its module was not called: the module is unused or was replaced, or another module uses "
                       "its weight")
            return make_error(error.status, f"{error}; {why}.  Exclude the layer with skip_layers, or set "
                              "missing='keep'")
        return error

    def _warn_unobserved(self):
        for hook in self._observer.hooks:
            layer = hook.layer
            if layer.name in self._warned_layers or layer.frozen:
                continue
            if self._core.read_struct("report_layer", _abi.ng_layer_report, layer.index)["unobserved"]:
                self._warned_layers.add(layer.name)
                _core.warn_caller(f"layer '{layer.name}' was not observed in step {self._steps - 1}, though it was due: its "
                                  "last average was used")

    @with_core_lock
    def reset_batch(self):
        """Discard the observations since the last step."""
        self._core.call("reset_batch")
        self._observer.start_next_batch()

    @property
    def hook_enabled(self):
        return self._observer.is_enabled

    @hook_enabled.setter
    def hook_enabled(self, on):
        """If False, hooks observe nothing: set this around a backward pass of a value other than the loss."""
        self._core.check_open()
        if isinstance(on, str):
            raise make_error(_abi.NG_ERR_ARG, f"hook_enabled is '{on}', expected True or False")
        self._observer.is_enabled = bool(on)

    @with_core_lock
    def close(self):
        """Remove the hooks from the model and free the memory of the library."""
        self._observer.remove()
        self._observer.is_enabled = False  # hooks on the graph of a forward pass remain
        self._core.close()

    # ---- reports

    def explain(self):
        """Return a list with a dict for each parameter: its curvature, or the reason why it has none.  It prints as a
        table."""
        reasons = {entry.index: entry.reason for entry in self.entries if entry.reason}
        rows = [_core.struct_to_dict(row) for row in self._read_report_rows("explain", _abi.ng_explain_row)]
        for row in rows:
            if row["why"].startswith("registered as a tensor"):
                row["why"] = reasons.get(row["index"], row["why"])
        for entry in self.entries:
            if entry.index < 0:
                rows.append(dict(name=entry.name, index=-1, count=entry.parameters()[0].numel(), covered=0, family="none",
                                 why="frozen", bytes=0, owner=-1))
        known = {id(p) for entry in self.entries for p in entry.parameters()}
        for name, p in self.model.named_parameters():
            if id(p) not in known:
                rows.append(dict(name=name, index=-1, count=p.numel(), covered=0, family="none",
                                 why="added after the preconditioner was made", bytes=0, owner=-1))
        return _state.Table(rows, ("name", "count", "covered", "family", "why", "bytes"))

    def memory_usage(self):
        """Return the bytes of memory on this rank for each use, and their `total`."""
        report = self._core.read_struct("report_read", _abi.ng_report)
        uses = ("factors", "sums", "results", "direction", "moments", "scratch", "objects")
        found = {use: report[use] for use in uses}
        return {**found, "total": sum(found.values())}

    @with_core_lock
    def report(self):
        """Return clip factor, numbers of rescued solves, times of stations, a report of each statistic and each
        layer, and the assumptions about the loss."""
        found = self._core.read_struct("report_read", _abi.ng_report)
        found["assumed"] = (f"{self._reduction} loss, {self.accumulation_steps} backward a step, "
                            f"{'no loss scale' if self.grad_scaler is None else 'the loss scale of grad_scaler'}")
        found["stations"] = [self._core.read_struct("report_station", _abi.ng_station_report, i)
                             for i in range(found["stations"])]
        found["statistics"] = [self._core.read_struct("report_statistic", _abi.ng_statistic_report, i)
                               for i in range(found["statistics"])]
        found["layers"] = [self._core.read_struct("report_layer", _abi.ng_layer_report, entry.index)
                           for entry in self.entries if isinstance(entry, _layers.Layer)]
        return found

    @with_core_lock
    def _read_report_rows(self, name, struct):
        self._core.check_open()
        found = [_core.new_struct(struct) for _ in range(getattr(self._core.library, f"ng_{name}_count")(self._core.p))]
        for i, row in enumerate(found):
            self._core.call(name, i, c.byref(row))
        return found


for _name, _method, _doc in CLASSES:
    globals()[_name] = type(_name, (Preconditioner,), {
        "method": _method, "__module__": __name__,
        "__doc__": _doc + f" (default {_method}).\n\n" + Preconditioner.__doc__})
