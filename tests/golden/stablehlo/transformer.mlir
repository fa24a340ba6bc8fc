module @jit_transformer attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x16x8xf32>, %arg1: tensor<3x8x2x4xf32>, %arg2: tensor<3x2x4x8xf32>, %arg3: tensor<3x8x2x4xf32>, %arg4: tensor<3x8x16xf32>, %arg5: tensor<3x8x2x4xf32>, %arg6: tensor<2x5x8xf32>) -> (tensor<2x5x8xf32> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:8 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg1, %iterArg_1 = %arg2, %iterArg_2 = %arg3, %iterArg_3 = %arg4, %iterArg_4 = %arg5, %iterArg_5 = %c, %iterArg_6 = %arg6) : tensor<3x16x8xf32>, tensor<3x8x2x4xf32>, tensor<3x2x4x8xf32>, tensor<3x8x2x4xf32>, tensor<3x8x16xf32>, tensor<3x8x2x4xf32>, tensor<i32>, tensor<2x5x8xf32>
    cond {
      %c_7 = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %iterArg_5, %c_7, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_5) : (tensor<3x16x8xf32>, tensor<i32>) -> tensor<16x8xf32>
      %2 = func.call @dynamic_index_in_dim_0(%iterArg_0, %iterArg_5) : (tensor<3x8x2x4xf32>, tensor<i32>) -> tensor<8x2x4xf32>
      %3 = func.call @dynamic_index_in_dim_1(%iterArg_1, %iterArg_5) : (tensor<3x2x4x8xf32>, tensor<i32>) -> tensor<2x4x8xf32>
      %4 = func.call @dynamic_index_in_dim_0(%iterArg_2, %iterArg_5) : (tensor<3x8x2x4xf32>, tensor<i32>) -> tensor<8x2x4xf32>
      %5 = func.call @dynamic_index_in_dim_2(%iterArg_3, %iterArg_5) : (tensor<3x8x16xf32>, tensor<i32>) -> tensor<8x16xf32>
      %6 = func.call @dynamic_index_in_dim_0(%iterArg_4, %iterArg_5) : (tensor<3x8x2x4xf32>, tensor<i32>) -> tensor<8x2x4xf32>
      %7 = func.call @closed_call(%iterArg_6, %1, %2, %3, %4, %5, %6) : (tensor<2x5x8xf32>, tensor<16x8xf32>, tensor<8x2x4xf32>, tensor<2x4x8xf32>, tensor<8x2x4xf32>, tensor<8x16xf32>, tensor<8x2x4xf32>) -> tensor<2x5x8xf32>
      %c_7 = stablehlo.constant dense<1> : tensor<i32>
      %8 = stablehlo.add %iterArg_5, %c_7 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_0, %iterArg_1, %iterArg_2, %iterArg_3, %iterArg_4, %8, %7 : tensor<3x16x8xf32>, tensor<3x8x2x4xf32>, tensor<3x2x4x8xf32>, tensor<3x8x2x4xf32>, tensor<3x8x16xf32>, tensor<3x8x2x4xf32>, tensor<i32>, tensor<2x5x8xf32>
    }
    return %0#7 : tensor<2x5x8xf32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<3x16x8xf32>, %arg1: tensor<i32>) -> tensor<16x8xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 16, 8] : (tensor<3x16x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x16x8xf32>) -> tensor<16x8xf32>
    return %1 : tensor<16x8xf32>
  }
  func.func private @dynamic_index_in_dim_0(%arg0: tensor<3x8x2x4xf32>, %arg1: tensor<i32>) -> tensor<8x2x4xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, sizes = [1, 8, 2, 4] : (tensor<3x8x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x2x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8x2x4xf32>) -> tensor<8x2x4xf32>
    return %1 : tensor<8x2x4xf32>
  }
  func.func private @dynamic_index_in_dim_1(%arg0: tensor<3x2x4x8xf32>, %arg1: tensor<i32>) -> tensor<2x4x8xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, sizes = [1, 2, 4, 8] : (tensor<3x2x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x4x8xf32>) -> tensor<2x4x8xf32>
    return %1 : tensor<2x4x8xf32>
  }
  func.func private @dynamic_index_in_dim_2(%arg0: tensor<3x8x16xf32>, %arg1: tensor<i32>) -> tensor<8x16xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 8, 16] : (tensor<3x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x16xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }
  func.func private @closed_call(%arg0: tensor<2x5x8xf32>, %arg1: tensor<16x8xf32>, %arg2: tensor<8x2x4xf32>, %arg3: tensor<2x4x8xf32>, %arg4: tensor<8x2x4xf32>, %arg5: tensor<8x16xf32>, %arg6: tensor<8x2x4xf32>) -> tensor<2x5x8xf32> {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<2x5x8xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<2x5x8xf32>, tensor<f32>) -> tensor<2x5xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<2x5xf32>) -> tensor<2x5x1xf32>
    %cst_0 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x5x1xf32>
    %4 = stablehlo.divide %2, %3 : tensor<2x5x1xf32>
    %cst_1 = stablehlo.constant dense<9.99999997E-7> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x5x1xf32>
    %6 = stablehlo.add %4, %5 : tensor<2x5x1xf32>
    %7 = stablehlo.rsqrt %6 : tensor<2x5x1xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : (tensor<2x5x1xf32>) -> tensor<2x5x8xf32>
    %9 = stablehlo.multiply %arg0, %8 : tensor<2x5x8xf32>
    %10 = stablehlo.dot_general %arg4, %9, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x2x4xf32>, tensor<2x5x8xf32>) -> tensor<2x4x2x5xf32>
    %11 = stablehlo.transpose %10, dims = [2, 0, 3, 1] : (tensor<2x4x2x5xf32>) -> tensor<2x2x5x4xf32>
    %12 = stablehlo.dot_general %arg2, %9, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x2x4xf32>, tensor<2x5x8xf32>) -> tensor<2x4x2x5xf32>
    %13 = stablehlo.transpose %12, dims = [2, 0, 3, 1] : (tensor<2x4x2x5xf32>) -> tensor<2x2x5x4xf32>
    %14 = stablehlo.dot_general %arg6, %9, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x2x4xf32>, tensor<2x5x8xf32>) -> tensor<2x4x2x5xf32>
    %15 = stablehlo.transpose %14, dims = [2, 0, 3, 1] : (tensor<2x4x2x5xf32>) -> tensor<2x2x5x4xf32>
    %16 = stablehlo.dot_general %11, %13, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x5x4xf32>, tensor<2x2x5x4xf32>) -> tensor<2x2x5x5xf32>
    %cst_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %17 = stablehlo.reduce(%16 init: %cst_2) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x5x5xf32>, tensor<f32>) -> tensor<2x2x5xf32>
    %cst_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<2x2x5xf32>
    %19 = stablehlo.maximum %18, %17 : tensor<2x2x5xf32>
    %20 = stablehlo.broadcast_in_dim %19, dims = [0, 1, 2] : (tensor<2x2x5xf32>) -> tensor<2x2x5x1xf32>
    %21 = stablehlo.broadcast_in_dim %20, dims = [0, 1, 2, 3] : (tensor<2x2x5x1xf32>) -> tensor<2x2x5x5xf32>
    %22 = stablehlo.subtract %16, %21 : tensor<2x2x5x5xf32>
    %23 = stablehlo.exponential %22 : tensor<2x2x5x5xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %24 = stablehlo.reduce(%23 init: %cst_4) applies stablehlo.add across dimensions = [3] : (tensor<2x2x5x5xf32>, tensor<f32>) -> tensor<2x2x5xf32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [0, 1, 2] : (tensor<2x2x5xf32>) -> tensor<2x2x5x1xf32>
    %26 = stablehlo.broadcast_in_dim %25, dims = [0, 1, 2, 3] : (tensor<2x2x5x1xf32>) -> tensor<2x2x5x5xf32>
    %27 = stablehlo.divide %23, %26 : tensor<2x2x5x5xf32>
    %28 = stablehlo.dot_general %27, %15, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x5x5xf32>, tensor<2x2x5x4xf32>) -> tensor<2x2x5x4xf32>
    %29 = stablehlo.dot_general %28, %arg3, contracting_dims = [3, 1] x [1, 0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x5x4xf32>, tensor<2x4x8xf32>) -> tensor<2x5x8xf32>
    %30 = stablehlo.add %arg0, %29 : tensor<2x5x8xf32>
    %31 = stablehlo.multiply %30, %30 : tensor<2x5x8xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %32 = stablehlo.reduce(%31 init: %cst_5) applies stablehlo.add across dimensions = [2] : (tensor<2x5x8xf32>, tensor<f32>) -> tensor<2x5xf32>
    %33 = stablehlo.broadcast_in_dim %32, dims = [0, 1] : (tensor<2x5xf32>) -> tensor<2x5x1xf32>
    %cst_6 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %34 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<2x5x1xf32>
    %35 = stablehlo.divide %33, %34 : tensor<2x5x1xf32>
    %cst_7 = stablehlo.constant dense<9.99999997E-7> : tensor<f32>
    %36 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<2x5x1xf32>
    %37 = stablehlo.add %35, %36 : tensor<2x5x1xf32>
    %38 = stablehlo.rsqrt %37 : tensor<2x5x1xf32>
    %39 = stablehlo.broadcast_in_dim %38, dims = [0, 1, 2] : (tensor<2x5x1xf32>) -> tensor<2x5x8xf32>
    %40 = stablehlo.multiply %30, %39 : tensor<2x5x8xf32>
    %41 = stablehlo.dot_general %40, %arg5, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x5x8xf32>, tensor<8x16xf32>) -> tensor<2x5x16xf32>
    %42 = call @relu(%41) : (tensor<2x5x16xf32>) -> tensor<2x5x16xf32>
    %43 = stablehlo.dot_general %42, %arg1, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x5x16xf32>, tensor<16x8xf32>) -> tensor<2x5x8xf32>
    %44 = stablehlo.add %30, %43 : tensor<2x5x8xf32>
    return %44 : tensor<2x5x8xf32>
  }
  func.func private @relu(%arg0: tensor<2x5x16xf32>) -> tensor<2x5x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x5x16xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<2x5x16xf32>
    return %1 : tensor<2x5x16xf32>
  }
}
