#!/usr/bin/env bash
# The study on digits: four optimizers tuned alike, then measured with fresh seeds.
NAME=digits
source "$(dirname "$0")/study.sh"

recipes="lars:digits nesterov:digits sm3:digits shampoo:digits"

# 24 trials for each optimizer, with seeds that are not used below. A trial has two seeds, because
# one of the 360 evaluation images is 0.3 points of accuracy. It is evaluated once, at its end,
# since only its final accuracy is compared.
sweep --recipes="$recipes" --trials=24 --seeds=1000:1002 --config.eval_every_steps=60 \
  --out="$OUT/tuning"

# The chosen hyperparameters, at three budgets of steps.
sweep --recipes="$recipes" --tuned="$OUT/tuning/trials.json" --budgets=48,60,76 --seeds=0:10 \
  --out="$OUT/ladder"

finish
