module @tessera {
  func.func public @main(%arg0: tensor<4x3xf32>, %arg1: tensor<2x3xf32>) -> (tensor<3x4xf32>) {
    %0 = stablehlo.iota dim = 0 : tensor<2xi32> loc(#loc1)
    %1 = "stablehlo.all_to_all"(%0) {split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xi32>) -> tensor<2xi32> loc(#loc1)
    %2 = stablehlo.slice %1 [0:1] : (tensor<2xi32>) -> tensor<1xi32> loc(#loc1)
    %3 = stablehlo.reshape %2 : (tensor<1xi32>) -> tensor<i32> loc(#loc1)
    %4:1 = "stablehlo.case"(%3) ({
        stablehlo.return %arg1 : tensor<2x3xf32>
    }, {
        %4 = stablehlo.slice %arg1 [0:1, 0:3] : (tensor<2x3xf32>) -> tensor<1x3xf32> loc(#loc2)
        %5 = stablehlo.constant dense<0.0> : tensor<f32> loc(#loc2)
        %6 = stablehlo.pad %4, %5, low = [0, 0], high = [1, 0], interior = [0, 0] : (tensor<1x3xf32>, tensor<f32>) -> tensor<2x3xf32> loc(#loc2)
        stablehlo.return %6 : tensor<2x3xf32>
    }) : (tensor<i32>) -> (tensor<2x3xf32>) loc(#loc2)
    %7 = stablehlo.reshape %4 : (tensor<2x3xf32>) -> tensor<1x2x3xf32> loc(#loc3)
    %8 = "stablehlo.all_gather"(%7) {all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<1x2x3xf32>) -> tensor<2x2x3xf32> loc(#loc3)
    %9:1 = "stablehlo.case"(%3) ({
        %9 = stablehlo.reshape %8 : (tensor<2x2x3xf32>) -> tensor<4x3xf32> loc(#loc3)
        %10 = stablehlo.slice %9 [0:3, 0:3] : (tensor<4x3xf32>) -> tensor<3x3xf32> loc(#loc3)
        %11 = stablehlo.dot_general %10, %arg0, contracting_dims = [1] x [1] : (tensor<3x3xf32>, tensor<4x3xf32>) -> tensor<3x4xf32> loc(#loc4)
        stablehlo.return %11 : tensor<3x4xf32>
    }, {
        %9 = stablehlo.slice %arg1 [0:1, 0:3] : (tensor<2x3xf32>) -> tensor<1x3xf32> loc(#loc2)
        %10 = stablehlo.dot_general %9, %arg0, contracting_dims = [1] x [1] : (tensor<1x3xf32>, tensor<4x3xf32>) -> tensor<1x4xf32> loc(#loc4)
        %11 = stablehlo.constant dense<0.0> : tensor<f32> loc(#loc2)
        %12 = stablehlo.pad %10, %11, low = [0, 0], high = [2, 0], interior = [0, 0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<3x4xf32> loc(#loc2)
        stablehlo.return %12 : tensor<3x4xf32>
    }) : (tensor<i32>) -> (tensor<3x4xf32>) loc(#loc2)
    return %9 : tensor<3x4xf32>
  }
} loc("denoiser"("Model"))
#loc1 = loc("collective.all_to_all partition"("program":0:0))
#loc2 = loc("branches"("program":0:0))
#loc3 = loc("collective.all_gather ring"("program":1:0))
#loc4 = loc("linear blocks.0.attn.to_q"("block 0":2:0))
