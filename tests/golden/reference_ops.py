"""Single ops whose semantics differ between frameworks, in fp64. All inputs
and outputs are stored as a whole, named CASE/TENSOR. `d_NAME` is the gradient
of sum(y * dy), or of a loss itself, with respect to NAME."""

import numpy as np
import torch
import torch.nn.functional as F

import philox


class Cases:
    """Collects tensors. Draws each input from its own stream."""

    def __init__(self):
        self.tensors = {}
        self.cases = {}
        self._site = 0

    def draw(self, *shape, low=-1.0, high=1.0):
        u = philox.uniform(0, 0, self._site, 0, int(np.prod(shape)))
        self._site += 1
        values = low + (high - low) * u.astype(np.float64)
        return torch.from_numpy(values.reshape(shape))

    def draw_integers(self, *shape, low, high):
        return torch.floor(self.draw(*shape, low=low, high=high)).to(torch.int64)

    def add(self, case, op, attributes, **tensors):
        self.cases[case] = {"op": op, **attributes}
        for name, tensor in tensors.items():
            self.tensors[f"{case}/{name}"] = (
                tensor.detach().contiguous().numpy().copy())

    def differentiate(self, case, op, attributes, function, **inputs):
        """Runs y = function(**inputs). Stores inputs, y, dy and gradients."""
        leaves = {n: t.clone().requires_grad_() for n, t in inputs.items()}
        y = function(**leaves)
        dy = self.draw(*y.shape)
        y.backward(dy)
        self.add(case, op, attributes, **inputs, y=y, dy=dy,
                 **{f"d_{n}": t.grad for n, t in leaves.items()})


def batch_norm(c):
    attributes = {"epsilon": 1e-5, "momentum": 0.1}
    x, gamma, beta = c.draw(4, 3, 5, 6), c.draw(3, low=0.5, high=1.5), c.draw(3)
    mean, var = c.draw(3), c.draw(3, low=0.5, high=1.5)
    new_mean, new_var = mean.clone(), var.clone()

    def train(x, gamma, beta):
        return F.batch_norm(x, new_mean, new_var, gamma, beta, training=True,
                            momentum=0.1, eps=1e-5)

    c.differentiate("batch_norm_train", "batch_norm", attributes, train, x=x,
                    gamma=gamma, beta=beta)
    c.add("batch_norm_train", "batch_norm", attributes, running_mean=mean,
          running_var=var, new_running_mean=new_mean, new_running_var=new_var)
    y = F.batch_norm(x, mean, var, gamma, beta, training=False, eps=1e-5)
    c.add("batch_norm_eval", "batch_norm", {"epsilon": 1e-5}, x=x, gamma=gamma,
          beta=beta, running_mean=mean, running_var=var, y=y)


def pooling(c):
    window = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]}
    # Few distinct negative values, so that nearly every window has a tie. A
    # padding of zero would be the maximum.
    ties = c.draw_integers(2, 3, 7, 8, low=-4, high=0).to(torch.float64)
    c.differentiate("max_pool_ties", "max_pool", window,
                    lambda x: F.max_pool2d(x, 3, 2, 1), x=ties)
    c.differentiate("max_pool_even", "max_pool", window,
                    lambda x: F.max_pool2d(x, 3, 2, 1), x=c.draw(2, 3, 8, 8))
    for include in (False, True):
        c.differentiate(
            f"avg_pool_include_pad_{str(include).lower()}", "avg_pool",
            {**window, "count_include_pad": include},
            lambda x, include=include: F.avg_pool2d(
                x, 3, 2, 1, count_include_pad=include), x=c.draw(2, 3, 7, 8))
    for size in (1, 2, 9):
        c.differentiate(
            f"adaptive_avg_pool_{size}_to_7", "adaptive_avg_pool",
            {"output": [7, 7]}, lambda x: F.adaptive_avg_pool2d(x, 7),
            x=c.draw(2, 3, size, size))


def losses(c):
    labels = c.draw_integers(5, low=0, high=7)
    for smoothing in (0.0, 0.1):
        logits = c.draw(5, 7, low=-4, high=4).requires_grad_()
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        loss.backward()
        c.add(f"cross_entropy_smoothing_{smoothing}", "cross_entropy",
              {"label_smoothing": smoothing, "reduction": "mean"}, logits=logits,
              labels=labels, loss=loss.view(1), d_logits=logits.grad)


def activations_and_norms(c):
    for approximate in ("none", "tanh"):
        c.differentiate(f"gelu_{'erf' if approximate == 'none' else 'tanh'}",
                        "gelu", {"approximate": approximate},
                        lambda x, a=approximate: F.gelu(x, approximate=a),
                        x=c.draw(64, low=-6, high=6))
    c.differentiate("layer_norm", "layer_norm", {"epsilon": 1e-5, "axes": [2]},
                    lambda x, gamma, beta: F.layer_norm(
                        x, (10,), gamma, beta, eps=1e-5),
                    x=c.draw(4, 6, 10), gamma=c.draw(10, low=0.5, high=1.5),
                    beta=c.draw(10))


def convolutions(c):
    # name, image, in, out, kernel, stride, padding, dilation, groups, bias
    table = [
        ("3x3_stride2_pad1", (9, 8), 4, 6, (3, 3), 2, 1, 1, 1, True),
        ("3x3_dilation2", (9, 9), 4, 6, (3, 3), 1, 2, 2, 1, False),
        ("3x3_groups2", (6, 7), 4, 6, (3, 3), 1, 1, 1, 2, False),
        ("3x3_depthwise_stride2", (7, 7), 6, 6, (3, 3), 2, 1, 1, 6, False),
        ("1x1_stride2", (7, 7), 4, 6, (1, 1), 2, 0, 1, 1, False),
        ("7x7_stride2_pad3", (12, 11), 3, 4, (7, 7), 2, 3, 1, 1, False),
        ("asymmetric", (8, 9), 3, 4, (3, 5), (2, 1), (0, 2), (1, 2), 1, True),
        ("unused_border", (8, 8), 2, 3, (3, 3), 3, 0, 1, 1, False),
    ]
    for name, image, cin, cout, kernel, stride, pad, dilation, groups, bias in table:
        pair = lambda v: list(v) if isinstance(v, tuple) else [v, v]
        inputs = {"x": c.draw(2, cin, *image),
                  "w": c.draw(cout, cin // groups, *kernel)}
        if bias:
            inputs["b"] = c.draw(cout)
        c.differentiate(
            f"conv_{name}", "conv",
            {"stride": pair(stride), "padding": pair(pad),
             "dilation": pair(dilation), "groups": groups},
            lambda x, w, b=None: F.conv2d(x, w, b, stride, pad, dilation, groups),
            **inputs)


def optimizers(c):
    for name, nesterov in (("momentum", False), ("nesterov", True)):
        start = c.draw(11)
        gradients = c.draw(3, 11)
        w = start.clone().requires_grad_()
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9, weight_decay=0.01,
                                    dampening=0, nesterov=nesterov)
        weights, momenta = [], []
        for gradient in gradients:
            w.grad = gradient.clone()
            optimizer.step()
            weights.append(w.detach().clone())
            momenta.append(optimizer.state[w]["momentum_buffer"].clone())
        c.add(f"sgd_{name}", "sgd",
              {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "dampening": 0,
               "nesterov": nesterov}, start=start, gradients=gradients,
              weights=torch.stack(weights), momenta=torch.stack(momenta))


class RmspropTf(torch.optim.Optimizer):
    """TensorFlow's RMSProp as in timm's RMSpropTF: epsilon is inside the
    square root, the mean square starts at 1, and the momentum includes the
    rate."""

    def __init__(self, params, lr, alpha, eps, momentum, weight_decay):
        super().__init__(params, {})
        self.lr, self.alpha, self.eps = lr, alpha, eps
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self):
        p = self.param_groups[0]["params"][0]
        state = self.state[p]
        if not state:
            state["square"] = torch.ones_like(p)
            state["momentum"] = torch.zeros_like(p)
        g = p.grad + self.weight_decay * p
        state["square"] += (1 - self.alpha) * (g * g - state["square"])
        state["momentum"] = (self.momentum * state["momentum"] +
                             self.lr * g / torch.sqrt(state["square"] + self.eps))
        p -= state["momentum"]


class Lamb(torch.optim.Optimizer):
    """LAMB as in apex's multi_tensor_lamb.cu without clipping."""

    def __init__(self, params, lr, betas, eps, weight_decay):
        super().__init__(params, {})
        self.lr, self.betas, self.eps = lr, betas, eps
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self):
        p = self.param_groups[0]["params"][0]
        state = self.state[p]
        if not state:
            state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
        beta1, beta2 = self.betas
        state["t"] += 1
        state["m"] = beta1 * state["m"] + (1 - beta1) * p.grad
        state["v"] = beta2 * state["v"] + (1 - beta2) * p.grad**2
        m = state["m"] / (1 - beta1**state["t"])
        v = state["v"] / (1 - beta2**state["t"])
        update = m / (torch.sqrt(v) + self.eps) + self.weight_decay * p
        ratio = 1.0
        if self.weight_decay != 0 and p.norm() > 0 and update.norm() > 0:
            ratio = p.norm() / update.norm()
        p -= self.lr * ratio * update


def adaptive_optimizers(c):
    adam = {"lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-8}
    other = {"lr": 0.02, "betas": (0.8, 0.97), "eps": 1e-3, "weight_decay": 0.05}
    rms = {"lr": 0.02, "alpha": 0.99, "eps": 1e-8, "momentum": 0,
           "weight_decay": 0}
    heavy = {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "momentum": 0.8,
             "weight_decay": 0.05}
    table = [
        ("adam", "adam", torch.optim.Adam, {**adam, "weight_decay": 0}),
        ("adam_decay", "adam", torch.optim.Adam, other),
        ("adamw", "adamw", torch.optim.AdamW, {**adam, "weight_decay": 0.01}),
        ("adamw_decay", "adamw", torch.optim.AdamW, other),
        ("rmsprop", "rmsprop", torch.optim.RMSprop, rms),
        ("rmsprop_momentum", "rmsprop", torch.optim.RMSprop, heavy),
        ("rmsprop_tf", "rmsprop-tf", RmspropTf, rms),
        ("rmsprop_tf_momentum", "rmsprop-tf", RmspropTf, heavy),
        ("lamb", "lamb", Lamb, other),
        ("lamb_plain", "lamb", Lamb, {**adam, "weight_decay": 0}),
    ]
    for case, op, optimizer, options in table:
        start, gradients = c.draw(11), c.draw(20, 11)
        w = start.clone().requires_grad_()
        stepper = optimizer([w], **options)
        weights = []
        for gradient in gradients:
            w.grad = gradient.clone()
            stepper.step()
            weights.append(w.detach().clone())
        betas = options.get("betas")
        attributes = {k: v for k, v in options.items() if k != "betas"}
        if betas:
            attributes.update(beta1=betas[0], beta2=betas[1])
        c.add(case, op, attributes, start=start, gradients=gradients,
              weights=torch.stack(weights))


def all_cases():
    """Returns ({CASE/TENSOR: array}, {CASE: {op, attributes}})."""
    c = Cases()
    for group in (batch_norm, pooling, losses, activations_and_norms,
                  convolutions, optimizers, adaptive_optimizers):
        group(c)
    return c.tensors, c.cases
