#pragma once

namespace fusor::test {

// One or two lines of each log format that speeds are parsed from.
inline constexpr const char* kSpeedLines[] = {
    "DLL 2020-09-15 14:29:13.473765 - Epoch: 0 Iteration: 1  train.loss : "
    "7.09304  train.total_ips : 267.44 img/s\n",
    R"(DLLL {"datetime":"2020-09-15 14:29:15.500000","type":"LOG",)"
    R"("step":[0,10],"data":{"train.total_ips":"200.5"}})"
    "\n",
    R"({"type":"step","step":2,"images_per_second":9.0,"time":1001.0})"
    "\n",
    "DLL 2020-08-01 10:00:00.000000 - (0, 21) imgs_per_sec : 2700.5 \n",
    "2020-09-01 10:00:00,100:INFO: Epoch[0] Batch [1-1]\tSpeed: 900.00 "
    "samples/sec\n",
    "2020-04-26 18:11:14,577-INFO: [Pass 0, train batch 10]  loss 59.5, "
    "elapse 0.1612 sec\n",
    "worker_index: 1, step1 cost = 6.96, speed: 412.0\n",
    "I0826 23:59:40.500000 1 keras_utils.py:133] TimeHistory: 39.13 seconds, "
    "327.08 examples/second between steps 100 and 200\n",
    "train: epoch 48, iter 100, loss: 1.8, samples/s: 2897.681 1599761677.5\n",
    "epoch   0  iteration     10/100  loss 2.3    47.36 images/s  lr 0.1\n",
    "Epoch: [0][10/100]\tTime 0.25 (1.1)\tThroughput 1024 (900)\n",
    "epoch: 2 step: 20, loss is 6.7\n"
    "epoch time: 7000.000 ms, per step time: 350.000 ms\n",
};

}  // namespace fusor::test
